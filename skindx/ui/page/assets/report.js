// The report is made when it is asked for: the sealed answer of this page goes to the server, which
// keeps nothing of it, and a PDF comes back.
element.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-report]");
  if (!button || button.getAttribute("aria-disabled") === "true") return;
  const say = (sentence) => { button.closest("section").querySelector(".sx-report-problem").textContent = sentence; };
  const words = button.textContent;
  const patient = button.closest("section").querySelector("[data-pseudonym]").value;
  say("");
  button.setAttribute("aria-disabled", "true");
  button.textContent = "Making the report …";
  try {
    const answer = await fetch("report", { method: "POST", body: `${button.dataset.report}\n${patient}` });
    if (answer.ok) {
      const url = URL.createObjectURL(await answer.blob());
      Object.assign(document.createElement("a"), { href: url, download: button.dataset.name }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    } else {
      let sentence = `The server answered ${answer.status}; try again in a minute.`;
      try { sentence = (await answer.json()).error || sentence; } catch { /* of something in between */ }
      say(sentence);
    }
  } catch {
    say("The server cannot be reached; check the connection and try again.");
  }
  button.textContent = words;
  button.removeAttribute("aria-disabled");
});
