// Forms that the server wrote: what they hold goes back as one event, with the button pressed.
element.addEventListener("submit", (event) => {
  event.preventDefault();
  trigger("act", Object.fromEntries(new FormData(event.target, event.submitter)));
});
element.addEventListener("click", (event) => {
  const large = event.target.closest("[data-large]");
  if (large) large.setAttribute("aria-pressed", large.getAttribute("aria-pressed") !== "true");
  // What cannot be undone asks back first; the focus is on the answer that changes nothing.
  const asks = event.target.closest("[data-ask]");
  if (asks) { asks.nextElementSibling.showModal(); asks.nextElementSibling.querySelector("[data-keep]").focus(); }
  event.target.closest("[data-keep]")?.closest("dialog").close();
  if (event.target.closest("[data-again]")) document.dispatchEvent(new Event("skindx-again"));
});
