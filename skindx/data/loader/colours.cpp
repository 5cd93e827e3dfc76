// Turns and colours of training images, many in one call: thread by thread OpenCV takes the
// interpreter's lock some ten times an image, and 16 threads get no further than two. The pixels are
// OpenCV's.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using Byte = uint8_t;

// OpenCV's grey of RGB, in 1/2^15.
inline int grey(int r, int g, int b) { return (r * 9798 + g * 19235 + b * 3735 + (1 << 14)) >> 15; }

// To the nearest whole number, halves to the even one, for what lies in (-2^22, 2^22).
inline int rounded(float value) { return int(value + 12582912.0f - 12582912.0f); }

inline int clipped(int value) { return std::min(255, std::max(0, value)); }

// One of the square's eight symmetries: e, r90, r180, r270, v, hvt, h, t.
void turn(const Byte* in, Byte* out, int64_t side, int which) {
    // (row, column) of the result comes from base + row * down + column * across.
    const int64_t last = side - 1, row = side, column = 1;
    int64_t base = 0, down = row, across = column;
    switch (which) {
        case 1: base = last * column, down = -column, across = row; break;
        case 2: base = last * row + last * column, down = -row, across = -column; break;
        case 3: base = last * row, down = column, across = -row; break;
        case 4: base = last * row, down = -row; break;
        case 5: base = last * row + last * column, down = -column, across = -row; break;
        case 6: base = last * column, across = -column; break;
        case 7: down = column, across = row; break;
        default: std::memcpy(out, in, size_t(3 * side * side)); return;
    }
    // In tiles, so that what is read column by column stays in the processor's caches.
    constexpr int64_t TILE = 32;
    for (int64_t top = 0; top < side; top += TILE)
        for (int64_t left = 0; left < side; left += TILE)
            for (int64_t y = top; y < std::min(side, top + TILE); ++y) {
                const Byte* from = in + 3 * (base + y * down);
                Byte* to = out + 3 * y * side;
                for (int64_t x = left; x < std::min(side, left + TILE); ++x)
                    std::memcpy(to + 3 * x, from + 3 * x * across, 3);
            }
}

void by_table(Byte* pixels, int64_t bytes, const Byte* table) {
    for (int64_t n = 0; n < bytes; ++n) pixels[n] = table[pixels[n]];
}

void scaled(Byte* pixels, int64_t bytes, float factor, float offset) {
    Byte table[256];
    for (int level = 0; level < 256; ++level) {
        const float product = float(level) * factor, sum = product + offset;
        table[level] = Byte(std::min(255.0f, std::max(0.0f, sum)));
    }
    by_table(pixels, bytes, table);
}

constexpr int LANE = 256;

// Pixels of some length in three colours, which a processor takes many at a time.
struct Lanes {
    int r[LANE], g[LANE], b[LANE];
    void read(const Byte* at, int count) {
        for (int n = 0; n < count; ++n) r[n] = at[3 * n], g[n] = at[3 * n + 1], b[n] = at[3 * n + 2];
    }
    void write(Byte* at, int count) const {
        for (int n = 0; n < count; ++n)
            at[3 * n] = Byte(r[n]), at[3 * n + 1] = Byte(g[n]), at[3 * n + 2] = Byte(b[n]);
    }
};

template <class Work>
void by_lanes(Byte* pixels, int64_t count, Work work) {
    Lanes lanes;
    for (int64_t start = 0; start < count; start += LANE) {
        const int length = int(std::min<int64_t>(LANE, count - start));
        lanes.read(pixels + 3 * start, length);
        if (work(lanes, length)) lanes.write(pixels + 3 * start, length);
    }
}

void contrasted(Byte* pixels, int64_t count, double factor) {
    int64_t sum = 0;
    by_lanes(pixels, count, [&](const Lanes& in, int length) {
        int part = 0;
        for (int n = 0; n < length; ++n) part += grey(in.r[n], in.g[n], in.b[n]);
        sum += part;
        return false;
    });
    const double mean = double(sum) / double(count);
    if (factor == 0)
        std::memset(pixels, int(mean + 0.5), size_t(3 * count));
    else
        scaled(pixels, 3 * count, float(factor), float(mean * (1 - factor)));
}

void saturated(Byte* pixels, int64_t count, double factor) {
    const float much = float(factor), rest = float(1 - factor);
    by_lanes(pixels, count, [&](Lanes& it, int length) {
        for (int n = 0; n < length; ++n) {
            const int level = grey(it.r[n], it.g[n], it.b[n]);
            const float share = float(level) * rest;
            it.r[n] = clipped(rounded(std::fma(float(it.r[n]), much, share)));
            it.g[n] = clipped(rounded(std::fma(float(it.g[n]), much, share)));
            it.b[n] = clipped(rounded(std::fma(float(it.b[n]), much, share)));
        }
        return true;
    });
}

struct Tables {
    int saturation[256] = {0}, hue[256] = {0};
    Tables() {
        for (int n = 1; n < 256; ++n) {
            saturation[n] = int(std::nearbyint((255 << 12) / double(n)));
            hue[n] = int(std::nearbyint((180 << 12) / (6.0 * n)));
        }
    }
};
const Tables TABLES;

// To hue (0 to 179), saturation and value, the hue through the table, and back.
void hue_moved(Byte* pixels, int64_t count, double share) {
    int moved[256];
    for (int hue = 0; hue < 256; ++hue) {
        const double left = std::fmod(hue + 180 * share, 180.0);
        moved[hue] = int(left < 0 ? left + 180 : left);
    }
    by_lanes(pixels, count, [&](Lanes& it, int length) {
        for (int n = 0; n < length; ++n) {
            const int r = it.r[n], g = it.g[n], b = it.b[n];
            const int most = std::max(r, std::max(g, b)), range = most - std::min(r, std::min(g, b));
            const int green = b - r + 2 * range, blue = r - g + 4 * range;
            const int sixths = most == r ? g - b : most == g ? green : blue;
            const int angle = (sixths * TABLES.hue[range] + (1 << 11)) >> 12;
            const float hue = float(moved[angle + (angle < 0 ? 180 : 0)]) * (6.0f / 180.0f);
            const int sector = int(hue);
            const int grade = (range * TABLES.saturation[most] + (1 << 11)) >> 12;
            const float part = hue - float(sector);
            const float sat = float(grade) * (1 / 255.0f), value = float(most) * (1 / 255.0f);
            const int full = int(value * 255.0f), low = int(value * (1 - sat) * 255.0f);
            const int falling = int(value * std::fma(-sat, part, 1.0f) * 255.0f);
            const int rising = int(value * std::fma(-sat, 1 - part, 1.0f) * 255.0f);
            // Each colour is full for two sixths of the circle, then falls, is low for two, and rises.
            it.r[n] = sector == 1 ? falling : sector == 4 ? rising : (sector % 5) == 0 ? full : low;
            it.g[n] = sector == 3 ? falling : sector == 0 ? rising : sector < 3 ? full : low;
            it.b[n] = sector == 5 ? falling : sector == 2 ? rising : sector > 2 ? full : low;
        }
        return true;
    });
}

}  // namespace

extern "C" {

// Changes `images` squares in place. Of each: its turn, then four steps, each brightness (0),
// contrast (1), saturation (2) or hue (3) by the factor of that number, or nothing (-1).
void change(int64_t images, int64_t side, Byte* pixels, const int32_t* turns, const int32_t* steps,
            const double* factors) {
    const int64_t count = side * side;
    std::vector<Byte> before(size_t(3 * count));
    for (int64_t n = 0; n < images; ++n, pixels += 3 * count) {
        if (turns[n]) {
            std::memcpy(before.data(), pixels, before.size());
            turn(before.data(), pixels, side, turns[n]);
        }
        for (int step = 0; step < 4; ++step) {
            const int which = steps[4 * n + step];
            if (which < 0) break;
            const double factor = factors[4 * n + which];
            if (which == 3) {
                if (factor != 0) hue_moved(pixels, count, factor);
            } else if (factor != 1) {
                if (which == 0) scaled(pixels, 3 * count, float(factor), 0);
                if (which == 1) contrasted(pixels, count, factor);
                if (which == 2) saturated(pixels, count, factor);
            }
        }
    }
}

// Returns 0 if two pixels turn, darken and change their hue as they should.
int check() {
    Byte square[12] = {200, 10, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    const int32_t turns[1] = {2}, steps[4] = {3, 0, -1, -1};
    const double factors[4] = {0.5, 1, 1, 1.0 / 3};
    change(1, 2, square, turns, steps, factors);
    return !(square[9] == 5 && square[10] == 100 && square[11] == 5);
}
}
