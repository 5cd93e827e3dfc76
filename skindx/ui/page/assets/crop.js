// What the networks will see of a photo, before it is sent: the crop itself, and by what its lesion
// seems to be cut. The lesion is the dark region around the centre, in blue, by Otsu's threshold
// (1979), as `skindx.imaging.cut_lesions` has it on the server, which looks again.
const SIDE = 96, CROP_PIXELS = 224;
const CUT = {
  "": "Check that the whole lesion is inside.",
  square: "The lesion seems to reach beyond this square, so the networks would not see all of it. Take the photo again with the whole lesion in the middle.",
  edge: "The lesion seems to reach the edge of the photo, so part of it is missing. Take the photo again with the whole lesion and some skin around it.",
};

// Draws the central square of an image, `crop` of its shorter side, and returns the canvas.
function cropOf(image, crop) {
  const { naturalWidth: width, naturalHeight: height } = image, side = crop * Math.min(width, height);
  const canvas = Object.assign(document.createElement("canvas"), { width: CROP_PIXELS, height: CROP_PIXELS, className: "sx-crop" });
  canvas.getContext("2d").drawImage(image, (width - side) / 2, (height - side) / 2, side, side, 0, 0, CROP_PIXELS, CROP_PIXELS);
  return canvas;
}

function otsu(values) {
  const counts = new Float64Array(256);
  for (const value of values) counts[value] += 1;
  let sum = 0, below = 0, weight = 0, best = -1, threshold = 0;
  for (let level = 0; level < 256; level += 1) sum += level * counts[level];
  for (let level = 0; level < 256; level += 1) {
    weight += counts[level];
    below += level * counts[level];
    const rest = values.length - weight;
    if (!weight || !rest) continue;
    const between = weight * rest * (below / weight - (sum - below) / rest) ** 2;
    if (between > best) [best, threshold] = [between, level];
  }
  return threshold;
}

const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

// Returns "square", "edge" or "", as far as the photo shows.
function cutBy(image, crop) {
  const scale = SIDE / Math.min(image.naturalWidth, image.naturalHeight);
  const width = Math.round(scale * image.naturalWidth), height = Math.round(scale * image.naturalHeight);
  const small = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d", { willReadFrequently: true });
  small.filter = "blur(1.5px)";
  small.drawImage(image, 0, 0, width, height);
  const { data } = small.getImageData(0, 0, width, height);
  const blue = (place) => data[4 * place + 2], isRim = (place) => Math.max(data[4 * place], data[4 * place + 1], blue(place)) < 20;
  const skin = [...Array(width * height).keys()].filter((place) => !isRim(place));
  if (!skin.length) return "";
  const threshold = otsu(skin.map(blue)), dark = new Set(skin.filter((place) => blue(place) <= threshold));
  const middle = median([...dark].map(blue)), rest = median(skin.filter((place) => !dark.has(place)).map(blue));
  if (!(middle <= 0.82 * rest)) return ""; // too pale to be told from the skin
  const left = (width - SIDE / 3) / 2, top = (height - SIDE / 3) / 2;
  const isCentral = (place) => { const x = place % width - left, y = Math.floor(place / width) - top; return x >= 0 && y >= 0 && x < SIDE / 3 && y < SIDE / 3; };
  const stack = [...dark].filter(isCentral), region = new Set(stack);
  if (stack.length < 0.05 * (SIDE / 3) ** 2) return "";
  while (stack.length) {
    const place = stack.pop(), x = place % width;
    for (const next of [x > 0 && place - 1, x < width - 1 && place + 1, place - width, place + width]) {
      if (next !== false && dark.has(next) && !region.has(next)) { region.add(next); stack.push(next); }
    }
  }
  const half = crop * SIDE / 2, sides = [0, 0, 0, 0];
  let outside = 0, [x1, y1, x2, y2] = [width, height, 0, 0];
  for (const place of region) {
    const x = place % width, y = Math.floor(place / width);
    [x1, y1, x2, y2] = [Math.min(x1, x), Math.min(y1, y), Math.max(x2, x), Math.max(y2, y)];
    if (Math.abs(x + 0.5 - width / 2) > half || Math.abs(y + 0.5 - height / 2) > half) outside += 1;
    [x === 0, y === 0, x === width - 1, y === height - 1].forEach((there, side) => { sides[side] += there; });
  }
  if (region.size < 0.45 * (x2 - x1 + 1) * (y2 - y1 + 1)) return ""; // ragged: a shadow or hair
  if (sides.filter((count) => count > 0.05 * SIDE).length > 1) return ""; // background
  if (Math.max(...sides) >= 0.25 * Math.sqrt(region.size)) return "edge";
  return outside > 0.01 * region.size ? "square" : "";
}
