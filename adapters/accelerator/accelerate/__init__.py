"""accelerate: its shared state and its Accelerator, made from a run. accelerate is imported only when it is used."""
