// Photos of a case, enlarged: those of two cases beside each other, at one scale where both are known,
// zoomed and moved together. A click or the Enter key on a photo opens them, Escape closes them.
const MOST_TIMES = 8, ASPECT = 4 / 3; // the frame's, as book.css has it
let times = 1, moved = [0, 0], held = null; // the pointer's last place while a photo is dragged

function place() {
  const most = (1 - 1 / times) / 2; // of the frame, so that no photo leaves it
  moved = moved.map((part) => Math.max(-most, Math.min(most, part)));
  for (const image of at(".sx-zoom-pair")?.querySelectorAll("img") ?? []) image.style.transform = `scale(${times}) translate(${100 * moved[0]}cqw, ${100 * moved[1]}cqh)`;
  at(".sx-zoom-times").textContent = say("js_zoom", { times: `${decimal(times, { maximumFractionDigits: 1 })}×` });
}
function zoomBy(factor) {
  times = Math.max(1, Math.min(MOST_TIMES, times * factor));
  place();
}
function move(x, y) {
  moved = [moved[0] + x / times, moved[1] + y / times];
  place();
}

// The pressed photo, and of each other case the photo of the same number.
function together(button) {
  const number = [...button.parentElement.children].indexOf(button);
  return [...element.querySelectorAll(".sx-strip")].map((strip) => strip === button.parentElement ? button : strip.children[number] ?? strip.children[0]);
}

function enlarge(button) {
  const dialog = at(".sx-zoom"), shown = together(button), scaled = shown.every(({ dataset }) => dataset.mm);
  const sizes = shown.map(({ dataset, firstElementChild: { naturalWidth: wide, naturalHeight: high } }) => {
    const width = scaled ? Number(dataset.mm) : 1;
    return { width, needs: Math.max(width, width * high / wide * ASPECT) };
  });
  const most = Math.max(...sizes.map(({ needs }) => needs));
  at(".sx-zoom-pair").replaceChildren(...shown.map((one, index) => {
    const { width, needs } = sizes[index], image = Object.assign(document.createElement("img"), { src: one.firstElementChild.src, alt: one.dataset.name });
    image.style.width = `${100 * width / (scaled ? most : needs)}%`;
    const frame = document.createElement("div"), figure = document.createElement("figure");
    frame.append(image);
    figure.append(frame, Object.assign(document.createElement("figcaption"), { className: "sx-small", textContent: one.dataset.name }));
    return figure;
  }));
  at(".sx-zoom-scale").textContent = shown.length > 1 ? dialog.dataset[scaled ? "scaled" : "unscaled"] : "";
  [times, moved] = [1, [0, 0]];
  place();
  dialog.showModal();
  dialog.querySelector("[data-times]").focus();
}

element.addEventListener("click", ({ target }) => {
  const photo = target.closest("[data-large]"), factor = target.closest("[data-times]");
  if (photo) enlarge(photo);
  if (factor) zoomBy(Number(factor.dataset.times));
});
element.addEventListener("keydown", (event) => {
  if (!event.target.closest(".sx-zoom")) return;
  const ways = { ArrowLeft: [0.1, 0], ArrowRight: [-0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }[event.key];
  const factor = { "+": 1.5, "=": 1.5, "-": 1 / 1.5 }[event.key];
  if (!ways && !factor) return;
  event.preventDefault();
  if (ways) move(...ways); else zoomBy(factor);
});
element.addEventListener("wheel", (event) => {
  if (!event.target.closest(".sx-zoom-pair")) return;
  event.preventDefault();
  zoomBy(event.deltaY < 0 ? 1.2 : 1 / 1.2);
}, { passive: false });
element.addEventListener("pointerdown", (event) => {
  if (!event.target.closest(".sx-zoom-pair img")) return;
  event.preventDefault();
  held = event;
});
document.addEventListener("pointermove", (event) => {
  if (!held) return;
  const { width, height } = at(".sx-zoom-pair div").getBoundingClientRect();
  move((event.clientX - held.clientX) / width, (event.clientY - held.clientY) / height);
  held = event;
});
for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => { held = null; });
