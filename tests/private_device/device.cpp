// A device of torch that is added from outside (PrivateUse1): its memory is the host's, and the CPU computes for it.
//
// It has what such a device must have: an allocator with figures, a guard, hooks, copies to and from the host,
// generators of its own with a state, rules of autocast, and a fallback to the CPU for every other operation.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

namespace {

constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex COUNT = 2;
constexpr c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

thread_local c10::DeviceIndex current = 0;

// Memory

struct Block {
  void* data;
  int64_t bytes;
  c10::DeviceIndex device;
};

std::array<std::atomic<int64_t>, COUNT> used{};
std::array<std::atomic<int64_t>, COUNT> peak{};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  used[block->device] -= block->bytes;
  std::free(block->data);
  delete block;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(KIND, current);
    if (bytes == 0) {
      return {nullptr, device};
    }
    const size_t rounded = (bytes + 63) / 64 * 64;
    auto* block = new Block{std::aligned_alloc(64, rounded), static_cast<int64_t>(bytes), current};
    TORCH_CHECK(block->data != nullptr, "the device is out of memory");
    const int64_t now = used[current] += block->bytes;
    int64_t before = peak[current];
    while (before < now && !peak[current].compare_exchange_weak(before, now)) {
    }
    return {block->data, block, &free_block, device};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Allocator allocator;

// The current device. Work is done when a call returns, so there is one stream, and an event has always happened.

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before(KIND, current);
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {KIND, current}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < COUNT, "there is no device ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current = std::max<c10::DeviceIndex>(device.index(), 0);
  }
  c10::Stream getStream(c10::Device device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return COUNT; }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(1);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Random numbers: a generator of the device has one of the CPU, which draws.

struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex index, at::Generator drawing = at::detail::createCPUGenerator())
      : c10::GeneratorImpl(c10::Device(KIND, std::max<c10::DeviceIndex>(index, 0)), KEYS), drawing(std::move(drawing)) {}
  void set_current_seed(uint64_t seed) override { drawing.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { drawing.set_offset(offset); }
  uint64_t get_offset() const override { return drawing.get_offset(); }
  uint64_t current_seed() const override { return drawing.current_seed(); }
  uint64_t seed() override { return drawing.seed(); }
  void set_state(const c10::TensorImpl& state) override { drawing.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return drawing.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override { return new Generator(device().index(), drawing.clone()); }

  at::Generator drawing;
};

at::Generator& default_generator(c10::DeviceIndex index) {
  static std::array<at::Generator, COUNT> all{at::make_generator<Generator>(0), at::make_generator<Generator>(1)};
  return all.at(index < 0 ? current : index);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return COUNT; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex device) const override { Guard().setDevice({KIND, device}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return Guard().exchangeDevice({KIND, device}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return at::getCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return false; }
};

// Tensors

at::Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(KIND, current)));
  return at::detail::empty_generic(size, &allocator, KEYS, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(KIND, current)));
  return at::detail::empty_strided_generic(size, stride, &allocator, KEYS, c10::dtype_or_default(dtype));
}

// Returns a tensor of the CPU over the same memory.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) {
    return tensor;
  }
  const auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(source));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& to) {
  to.resize_(source.sizes());
  return copy_from(source, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  return on_host(tensor).item();
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, size, format);
}

at::Tensor& set_from_storage(at::Tensor& self, at::Storage source) {
  return at::cpu::set_(self, std::move(source));
}

at::Tensor& set_from_part(
    at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::cpu::set_(self, std::move(source), offset, size, stride);
}

// The device has done all work when a call returns, so no stream can still use the memory.
void record_stream(at::Tensor&, c10::Stream) {}

// Operations

std::atomic<int64_t> calls{0};

void on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  ++calls;
  at::native::cpu_fallback(operation, stack);
}

// Draws on the CPU with the generator that belongs to the one that was passed, or to the device's own.
void draw_on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto& arguments = operation.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  const auto index = (*stack)[first].toTensor().device().index();
  for (size_t place = 0; place < arguments.size(); ++place) {
    if (arguments[place].name() == "generator") {
      auto& value = (*stack)[first + place];
      const at::Generator given = value.isNone() ? default_generator(index) : value.toGenerator();
      value = static_cast<Generator*>(given.unsafeGetGeneratorImpl())->drawing;
    }
  }
  on_cpu(operation, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &resize_);
  m.impl("record_stream", &record_stream);
  m.impl("set_.source_Storage", &set_from_storage);
  m.impl("set_.source_Storage_storage_offset", &set_from_part);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  for (const auto* name : {"normal_", "uniform_", "random_", "random_.from", "random_.to", "bernoulli_.float",
                           "exponential_", "log_normal_", "geometric_", "cauchy_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&draw_on_cpu>());
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(softmax, int, fp32)
  KERNEL_PRIVATEUSEONE(log_softmax, int, fp32)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::SetAllocator(KIND, &allocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("device_count", [] { return static_cast<int>(COUNT); });
  m.def("current_device", [] { return static_cast<int>(current); });
  m.def("set_device", [](int index) { Guard().setDevice({KIND, static_cast<c10::DeviceIndex>(index)}); });
  m.def("memory_allocated", [](int index) { return used.at(index).load(); });
  m.def("max_memory_allocated", [](int index) { return peak.at(index).load(); });
  m.def("reset_peak_memory_stats", [](int index) { peak.at(index) = used.at(index).load(); });
  m.def("default_generator", [](int index) { return default_generator(static_cast<c10::DeviceIndex>(index)); });
  m.def("operations", [] { return calls.load(); });
}
