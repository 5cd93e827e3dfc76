// Forms that the server wrote: what they hold goes back as one event, with the button pressed.
let asking = false;
element.addEventListener("submit", (event) => {
  event.preventDefault();
  asking = true;
  element.querySelector(".sx-lost")?.remove();
  trigger("act", Object.fromEntries(new FormData(event.target, event.submitter)));
});
watch("value", () => { asking = false; });
element.addEventListener("input", (event) => { // what was wrong is being corrected
  for (const place of element.querySelectorAll(".sx-refusal:not(.sx-report-problem)")) place.textContent = "";
});
document.addEventListener("skindx-lost", ({ detail }) => {
  if (!asking) return;
  asking = false;
  const said = Object.assign(document.createElement("p"), { className: "sx-refusal sx-lost", textContent: detail || "The server gave no answer, so nothing may have been saved; check the connection and look again." });
  said.setAttribute("role", "alert");
  element.prepend(said);
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
