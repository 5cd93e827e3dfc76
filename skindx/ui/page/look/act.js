// Forms that the server wrote: what they hold goes back as one event, with the button pressed.
element.addEventListener("submit", (event) => {
  event.preventDefault();
  trigger("act", Object.fromEntries(new FormData(event.target, event.submitter)));
});
element.addEventListener("click", (event) => {
  if (event.target.closest("[data-again]")) document.dispatchEvent(new Event("skindx-again"));
});
