// Where one is on the page stands in its address, so that Back and a reload keep it: #book with the
// numbers of the cases that are shown, never a name.
const bookTab = () => [...document.querySelectorAll("button[role=tab]")].find((tab) => tab.dataset.tabId === "book");
const inBook = () => location.hash.startsWith("#book");
const lastPlace = () => document.querySelector("#sx-book [data-place]")?.dataset.place ?? "#book";
const isShown = (tab) => tab?.getAttribute("aria-selected") === "true";

let tabShown = false; // the tab of the case book

function showTab() {
  const book = bookTab();
  if (!book) return false;
  if (isShown(book) !== inBook()) (inBook() ? book : [...book.parentElement.querySelectorAll("button[role=tab]")].find((tab) => tab !== book)).click();
  return true;
}

function whenThere(tries = 600) { if (!showTab() && tries) requestAnimationFrame(() => whenThere(tries - 1)); }
if (inBook()) whenThere();
window.addEventListener("popstate", () => {
  const there = isShown(bookTab());
  showTab();
  if (there && inBook()) document.dispatchEvent(new Event("skindx-book"));
});
new MutationObserver(() => {
  const tab = bookTab();
  if (!tab || isShown(tab) === tabShown) return;
  tabShown = isShown(tab);
  if (tabShown !== inBook()) history.pushState({ ...history.state }, "", tabShown ? lastPlace() : location.pathname + location.search);
  if (tabShown) document.dispatchEvent(new Event("skindx-book"));
}).observe(document.body, { subtree: true, attributeFilter: ["aria-selected"] });
