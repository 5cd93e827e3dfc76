// What the networks will see of a photo, before it is sent: the crop itself, and by what its lesion
// seems to be cut. It is the rule of `skindx.imaging.cut_lesions`, step by step and with its numbers;
// tests/ui/test_browser_cuts.py has both judge the same photos. The server looks again.
const SIDE = 96, CROP_PIXELS = 224, LEAST_OUTSIDE = 0.01, LEAST_SOLID = 0.6, LEAST_CONTRAST = 0.18;
const LEAST_CENTRAL = 0.05, LEAST_TOUCHING = 0.25, MOST_TOUCHING = 1.5, CORNER = 0.05, RIM = 20, RIM_SHARE = 0.2;
// What the form says of a lesion that is cut, and of one that is not.
const cutWords = (cut) => say(`js_cut_${cut}`);

// Draws the central square of an image, `crop` of its shorter side, and returns the canvas.
function cropOf(image, crop) {
  const { naturalWidth: width, naturalHeight: height } = image, side = crop * Math.min(width, height);
  const canvas = Object.assign(document.createElement("canvas"), { width: CROP_PIXELS, height: CROP_PIXELS, className: "sx-crop" });
  canvas.getContext("2d").drawImage(image, (width - side) / 2, (height - side) / 2, side, side, 0, 0, CROP_PIXELS, CROP_PIXELS);
  return canvas;
}

// Returns a photo whose shorter side measures SIDE pixels, each the average of its area, in three planes.
function reduced(image) {
  const { naturalWidth: wide, naturalHeight: high } = image, scale = SIDE / Math.min(wide, high);
  const width = Math.max(1, Math.round(scale * wide)), height = Math.max(1, Math.round(scale * high));
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  return { width, height, planes: [0, 1, 2].map((channel) => Float64Array.from({ length: width * height }, (_, place) => data[4 * place + channel])) };
}

// A Gaussian of 1.5 pixels; beyond the edge the photo is mirrored.
function blurred(plane, width, height) {
  const weights = [...Array(11).keys()].map((at) => Math.exp(-((at - 5) ** 2) / 4.5)), sum = weights.reduce((a, b) => a + b);
  const mirrored = (at, most) => Math.min(Math.max(at < 0 ? -at : at >= most ? 2 * most - 2 - at : at, 0), most - 1);
  const along = (from, place) => weights.reduce((total, weight, at) => total + weight * from(place, at - 5), 0) / sum;
  const across = plane.map((_, place) => along((of, by) => plane[of - of % width + mirrored(of % width + by, width)], place));
  return plane.map((_, place) => Math.round(along((of, by) => across[of % width + width * mirrored(Math.floor(of / width) + by, height)], place)));
}

// Whether any (or every) pixel of a square around each is set; what lies beyond the edge is no pixel.
function spread(mask, width, height, half, every = false) {
  const line = (from, step, count) => mask.map((_, place) => {
    const at = step === 1 ? place % width : Math.floor(place / width);
    for (let by = Math.max(-half, -at); by <= Math.min(half, count - 1 - at); by += 1) if (from[place + by * step] !== Number(every)) return Number(!every);
    return Number(every);
  });
  return line(line(mask, 1, width), width, height);
}

// Numbers the parts of a mask, of which neighbours at a corner are one, from 1 on.
function parts(mask, width, height) {
  const numbers = new Int32Array(mask.length);
  let count = 0;
  for (let first = 0; first < mask.length; first += 1) {
    if (!mask[first] || numbers[first]) continue;
    const stack = [first];
    numbers[first] = count += 1;
    while (stack.length) {
      const place = stack.pop(), x = place % width, y = Math.floor(place / width);
      for (let down = Math.max(y - 1, 0); down <= Math.min(y + 1, height - 1); down += 1) for (let right = Math.max(x - 1, 0); right <= Math.min(x + 1, width - 1); right += 1) {
        const next = down * width + right;
        if (mask[next] && !numbers[next]) { numbers[next] = count; stack.push(next); }
      }
    }
  }
  return { numbers, count };
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

const quantile = (values, share) => {
  const sorted = Float64Array.from(values).sort(), at = share * (sorted.length - 1), low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
};

// The area of the convex hull of points in the order of their rows (Andrew's monotone chain).
function hullArea(points) {
  const turn = (a, b, c) => (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]);
  const half = (some) => some.reduce((chain, point) => {
    while (chain.length > 1 && turn(chain.at(-2), chain.at(-1), point) <= 0) chain.pop();
    return [...chain, point];
  }, []).slice(0, -1);
  const hull = [...half(points), ...half([...points].reverse())];
  return Math.abs(hull.reduce((sum, [y, x], at) => { const [down, right] = hull[(at + 1) % hull.length]; return sum + y * right - down * x; }, 0)) / 2;
}

// Returns "square", "edge" or "", as far as the photo shows; without a square `crop` is infinite.
function cutBy(image, crop) {
  const { width, height, planes } = reduced(image), soft = planes.map((plane) => blurred(plane, width, height)), [, , blue] = soft;
  const isEdge = (place) => place % width === 0 || place % width === width - 1 || place < width || place >= width * (height - 1);
  const brightest = blue.map((_, place) => Math.max(...soft.map((plane) => plane[place])));
  const limit = Math.min(RIM, RIM_SHARE * quantile(brightest, 0.95));
  const black = parts(spread(brightest.map((level) => Number(level < limit)), width, height, 3), width, height);
  const rims = new Set([...black.numbers].filter((number, place) => number && isEdge(place)));
  const skin = [...blue.keys()].filter((place) => !rims.has(black.numbers[place]));
  if (!skin.length) return "";
  const threshold = otsu(skin.map((place) => blue[place])), dark = skin.filter((place) => blue[place] <= threshold), rest = skin.filter((place) => blue[place] > threshold);
  if (!dark.length || !rest.length) return "";
  const middle = (places) => quantile(places.map((place) => blue[place]), 0.5);
  if (middle(dark) > (1 - LEAST_CONTRAST) * middle(rest)) return ""; // too pale to be told from the skin
  let mask = new Float64Array(width * height);
  for (const place of dark) mask[place] = 1;
  for (const [half, every] of [[1, true], [1, false], [2, false], [2, true]]) mask = spread(mask, width, height, half, every); // opened, then closed
  const { numbers, count } = parts(mask, width, height), weights = new Float64Array(count + 1), scale = (Math.min(width, height) / 4) ** 2;
  numbers.forEach((number, place) => { weights[number] += Math.exp(-((Math.floor(place / width) - (height - 1) / 2) ** 2 + (place % width - (width - 1) / 2) ** 2) / scale / 2); });
  const nearest = weights.reduce((best, weight, number) => number && (!best || weight > weights[best]) ? number : best, 0);
  if (!nearest) return "";
  const region = [...numbers.keys()].filter((place) => numbers[place] === nearest), points = region.map((place) => [Math.floor(place / width), place % width]);
  const third = Math.floor(Math.min(width, height) / 3), top = Math.floor((height - third) / 2), left = Math.floor((width - third) / 2);
  const central = points.filter(([y, x]) => y >= top && y < top + third && x >= left && x < left + third);
  if (central.length < LEAST_CENTRAL * third ** 2) return ""; // not at the centre
  if (region.length < LEAST_SOLID * Math.max(hullArea(points), 1)) return ""; // ragged: a shadow or hair
  const sides = [([y]) => y === 0, ([y]) => y === height - 1, ([, x]) => x === 0, ([, x]) => x === width - 1].map((is) => points.filter(is).length);
  const along = sides.reduce((a, b) => a + b) / Math.sqrt(region.length);
  if (along >= MOST_TOUCHING && sides.filter((touched, side) => touched > CORNER * (side < 2 ? width : height)).length > 1) return ""; // background
  if (along >= LEAST_TOUCHING) return "edge";
  const half = crop * Math.min(width, height) / 2;
  const outside = points.filter(([y, x]) => Math.abs(x + 0.5 - width / 2) >= half || Math.abs(y + 0.5 - height / 2) >= half);
  return crop < Infinity && outside.length > LEAST_OUTSIDE * region.length ? "square" : "";
}
