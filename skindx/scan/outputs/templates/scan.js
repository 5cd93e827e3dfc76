"use strict";
(() => {
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const rows = all(".lesions tbody tr");
  const figures = all("figure.whole");
  const LABEL_PX = 15, MOST_ZOOM = 60;
  document.documentElement.classList.add("script");
  all("[data-script]").forEach((part) => { part.hidden = false; });

  const views = figures.map((figure) => {
    const svg = one("svg", figure);
    const box = svg.viewBox.baseVal;
    const whole = { x: 0, y: 0, w: box.width, h: box.height };
    return { figure, svg, whole, now: { ...whole }, closeUp: null };
  });
  let current = 0, chosen = -1;

  const unitsPerPixel = (view) => {
    const rect = view.svg.getBoundingClientRect();
    return rect.width ? Math.max(view.now.w / rect.width, view.now.h / rect.height) : 1;
  };

  const show = (view) => {
    const { now, whole } = view;
    now.w = Math.min(Math.max(now.w, whole.w / MOST_ZOOM), whole.w);
    now.h = now.w * whole.h / whole.w;
    now.x = Math.min(Math.max(now.x, 0), whole.w - now.w);
    now.y = Math.min(Math.max(now.y, 0), whole.h - now.h);
    view.svg.setAttribute("viewBox", `${now.x} ${now.y} ${now.w} ${now.h}`);
    const near = now.w < whole.w * 0.999;
    view.svg.classList.toggle("near", near);
    const size = LABEL_PX * unitsPerPixel(view);
    all("text", view.svg).forEach((text) => {
      text.setAttribute("font-size", size);
      text.setAttribute("y", Math.max(Number(text.dataset.top) - size * 0.35, size));
    });
  };

  const point = (view, event) => {
    const matrix = view.svg.getScreenCTM();
    return new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
  };

  const zoom = (view, factor, at = null) => {
    const { now } = view;
    at = at || { x: now.x + now.w / 2, y: now.y + now.h / 2 };
    const w = Math.min(Math.max(now.w / factor, view.whole.w / MOST_ZOOM), view.whole.w);
    const share = w / now.w;
    now.x = at.x - (at.x - now.x) * share;
    now.y = at.y - (at.y - now.y) * share;
    now.w = w;
    show(view);
  };

  const showPhoto = (number) => {
    current = number;
    figures.forEach((figure, place) => { figure.hidden = place !== number; });
    all("button[data-photo]").forEach((button) =>
      button.setAttribute("aria-pressed", String(Number(button.dataset.photo) === number)));
    show(views[number]);
  };

  const outline = (row) => document.getElementById(row.dataset.outline);

  const choose = (place, focus = true, near = true) => {
    if (place < 0 || place >= rows.length) return;
    all(".chosen").forEach((part) => part.classList.remove("chosen"));
    all("tr[aria-current]").forEach((row) => row.removeAttribute("aria-current"));
    const row = rows[place];
    chosen = place;
    row.classList.add("chosen");
    row.setAttribute("aria-current", "true");
    const mark = outline(row);
    mark.classList.add("chosen");
    mark.parentNode.append(mark);
    const number = Number(row.dataset.photo);
    if (number !== current) showPhoto(number);
    const view = views[number];
    if (near) {
      const [x1, y1, x2, y2] = row.dataset.box.split(" ").map(Number);
      const room = 6 * Math.max(x2 - x1, y2 - y1);
      view.now.w = Math.max(room, room * view.whole.w / view.whole.h, view.whole.w / 8);
      view.now.w = Math.min(view.now.w, view.whole.w);
      view.now.h = view.now.w * view.whole.h / view.whole.w;
      view.now.x = (x1 + x2 - view.now.w) / 2;
      view.now.y = (y1 + y2 - view.now.h) / 2;
      closeUp(view, row);
    }
    show(view);
    if (focus) row.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  };

  /* The crop has more detail than the photo: it lies over its place while its lesion is chosen. */
  const closeUp = (view, row) => {
    views.forEach((other) => { if (other.closeUp) other.closeUp.remove(); other.closeUp = null; });
    const [x, y, w, h] = row.dataset.crop.split(" ").map(Number);
    const image = document.createElementNS("http://www.w3.org/2000/svg", "image");
    const places = { x, y, width: w, height: h, preserveAspectRatio: "none", href: one("img", row).src };
    Object.entries(places).forEach(([name, value]) => image.setAttribute(name, value));
    one("image", view.svg).after(image);
    view.closeUp = image;
  };

  const shown = () => rows.map((row, place) => place).filter((place) => !rows[place].hidden);
  const step = (by) => {
    const places = shown();
    if (!places.length) return;
    const at = places.indexOf(chosen);
    choose(places[at < 0 ? 0 : Math.min(Math.max(at + by, 0), places.length - 1)]);
  };

  const words = one("#filter"), which = one("#which"), count = one("#count");
  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row) => {
      const fits = (which.value === "all" || row.dataset.flags.split(" ").includes(which.value))
        && wanted.every((word) => row.dataset.words.includes(word));
      row.hidden = !fits;
      outline(row).classList.toggle("out", !fits);
    });
    const number = shown().length;
    count.textContent = count.dataset.shown.replace("{shown}", number).replace("{all}", rows.length);
  };
  words.addEventListener("input", filter);
  which.addEventListener("change", filter);
  one("#filters").addEventListener("submit", (event) => event.preventDefault());

  rows.forEach((row, place) => {
    row.tabIndex = -1;
    row.addEventListener("click", (event) => {
      if (event.target.closest("a")) event.preventDefault();
      if (!String(getSelection())) choose(place, Boolean(event.target.closest("a")));
    });
  });
  const buttons = { in: () => zoom(views[current], 1.6), out: () => zoom(views[current], 1 / 1.6),
    whole: () => zoom(views[current], 1e-3), before: () => step(-1), after: () => step(1) };
  all("[data-do]").forEach((button) => button.addEventListener("click", buttons[button.dataset.do]));
  all("button[data-photo]").forEach((button) =>
    button.addEventListener("click", () => showPhoto(Number(button.dataset.photo))));

  views.forEach((view) => {
    const held = new Map();
    let moved = 0;
    view.svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(view, Math.exp(-event.deltaY / 250), point(view, event));
    }, { passive: false });
    view.svg.addEventListener("dblclick", (event) => {
      event.preventDefault();
      zoom(view, 2, point(view, event));
    });
    view.svg.addEventListener("dragstart", (event) => event.preventDefault());
    view.svg.addEventListener("pointerdown", (event) => {
      held.set(event.pointerId, event);
      if (held.size === 1) moved = 0;
    });
    view.svg.addEventListener("pointermove", (event) => {
      const before = held.get(event.pointerId);
      if (!before) return;
      const others = [...held.values()].filter((other) => other.pointerId !== event.pointerId);
      if (others.length === 1) {
        const apart = (a, b) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
        zoom(view, apart(event, others[0]) / Math.max(apart(before, others[0]), 1), point(view, event));
        moved = 99;
      } else if (view.svg.classList.contains("near")) {
        moved += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
        if (moved > 4) {
          view.svg.setPointerCapture(event.pointerId);
          view.svg.classList.add("held");
          const units = unitsPerPixel(view);
          view.now.x -= (event.clientX - before.clientX) * units;
          view.now.y -= (event.clientY - before.clientY) * units;
          show(view);
        }
      }
      held.set(event.pointerId, event);
    });
    const release = (event) => { held.delete(event.pointerId); view.svg.classList.remove("held"); };
    view.svg.addEventListener("pointerup", release);
    view.svg.addEventListener("pointercancel", release);
    view.svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && !event.buttons) release(event); });
    view.svg.addEventListener("click", (event) => {
      const link = event.target.closest("a");
      if (!link) return;
      event.preventDefault();
      if (moved > 4) return;
      const place = rows.findIndex((row) => `#${row.id}` === link.getAttribute("href"));
      if (rows[place].hidden) { words.value = ""; which.value = "all"; filter(); }
      choose(place, true, false);
    });
  });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === words && event.key === "Escape") {
      words.value = ""; filter(); words.blur();
      return;
    }
    if (event.target.closest("input, select")) return;
    const keys = { ArrowDown: () => step(1), ArrowRight: () => step(1), ArrowUp: () => step(-1),
      ArrowLeft: () => step(-1), "/": () => words.focus(), "+": buttons.in, "=": buttons.in,
      "-": buttons.out, "0": buttons.whole };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  addEventListener("resize", () => views.forEach(show));
  showPhoto(0);
  filter();
  const linked = rows.findIndex((row) => `#${row.id}` === location.hash);
  if (linked >= 0) choose(linked);
})();
