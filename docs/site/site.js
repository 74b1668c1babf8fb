// Accessibility of the theme: what axe-core finds in pages as the theme's scripts leave them.
const mend = () => {
  // Code and tables that scroll can be reached by keyboard.
  for (const part of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) part.tabIndex = 0;
  // Lists within the navigation, and the buttons of each block of code, are no landmarks.
  for (const nav of document.querySelectorAll("nav nav, .md-code__nav")) {
    for (const name of ["aria-label", "aria-labelledby", "aria-expanded"]) nav.removeAttribute(name);
    if (nav.getAttribute("role") !== "none") nav.setAttribute("role", "none");
  }
};
addEventListener("load", mend);
const changes = { childList: true, subtree: true, attributeFilter: ["aria-expanded"] };
new MutationObserver(mend).observe(document.body, changes);
