// What the theme leaves out for people who use a keyboard or a screen reader: blocks of code and tables that scroll can be
// reached by Tab, and the buttons of a block of code are no landmark, of which every page would have dozens.
const scrolling = ".md-typeset pre > code, .md-typeset__scrollwrap";

function complete() {
  for (const buttons of document.querySelectorAll("nav.md-code__nav:not([role])")) {
    buttons.setAttribute("role", "none");
  }
  for (const region of document.querySelectorAll(scrolling)) {
    if (region.scrollWidth > region.clientWidth) {
      region.tabIndex = 0;
    } else {
      region.removeAttribute("tabindex");
    }
  }
}

complete();
addEventListener("resize", complete);
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
