// What the theme leaves out for people who use a keyboard or a screen reader: blocks of code and tables that scroll can be
// reached by Tab; the buttons of a block of code, and parts of the table of contents, are no landmarks, of which a page would
// have dozens.
const scrolling = ".md-typeset pre > code, .md-typeset__scrollwrap";

function complete() {
  for (const buttons of document.querySelectorAll("nav.md-code__nav:not([role])")) {
    buttons.setAttribute("role", "none");
  }
  for (const part of document.querySelectorAll("[data-md-component=toc] nav.md-nav:not([role])")) {
    part.setAttribute("role", "none"); // within the navigation of the page, which is a landmark already
    part.removeAttribute("aria-label");
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

// What a link leads to is shown, also within a part that is folded, for browsers that do not open it themselves.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = target?.closest("details:not([open])"); part; part = part.parentElement.closest("details:not([open])")) {
    part.open = true;
  }
  target?.scrollIntoView();
}

reveal();
addEventListener("hashchange", reveal);
