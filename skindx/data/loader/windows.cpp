// Windows of random crops, and the random numbers they come from, for many images at once. Everything
// is what NumPy and Python compute for one image at a time, bit for bit: a training goes on as before.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace {

// NumPy's SeedSequence, after O'Neill's "Developing a seed_seq Alternative" (2015): words of entropy
// are mixed into a pool of four, from which words of state are made.
constexpr int POOL = 4;

struct Mixer {
    uint32_t pool[POOL];

    static uint32_t hashed(uint32_t value, uint32_t& by) {
        value ^= by;
        by *= 0x931e8875u;
        value *= by;
        return value ^ value >> 16;
    }

    static uint32_t mixed(uint32_t x, uint32_t y) {
        const uint32_t value = 0xca01f9ddu * x - 0x4973f715u * y;
        return value ^ value >> 16;
    }

    Mixer(const uint32_t* entropy, int64_t count) {
        uint32_t by = 0x43b0d7e5u;
        for (int n = 0; n < POOL; ++n) pool[n] = hashed(n < count ? entropy[n] : 0, by);
        for (int from = 0; from < POOL; ++from)
            for (int to = 0; to < POOL; ++to)
                if (from != to) pool[to] = mixed(pool[to], hashed(pool[from], by));
        for (int64_t from = POOL; from < count; ++from)
            for (int to = 0; to < POOL; ++to) pool[to] = mixed(pool[to], hashed(entropy[from], by));
    }

    void state(int count, uint32_t* out) const {
        uint32_t by = 0x8b51f9ddu;
        for (int n = 0; n < count; ++n) {
            uint32_t value = pool[n % POOL] ^ by;
            by *= 0x58f38dedu;
            value *= by;
            out[n] = value ^ value >> 16;
        }
    }
};

// PCG64 (O'Neill 2014, XSL-RR 128/64), as NumPy seeds it.
struct Generator {
    using Wide = unsigned __int128;
    Wide state = 0, odd;

    explicit Generator(uint32_t seed) {
        uint32_t words[8];
        Mixer(&seed, 1).state(8, words);
        const auto wide = [&](int at) {
            const auto whole = [&](int n) { return uint64_t(words[n + 1]) << 32 | words[n]; };
            return Wide(whole(at)) << 64 | whole(at + 2);
        };
        odd = wide(4) << 1 | 1;
        step();
        state += wide(0);
        step();
    }

    void step() {
        state = state * (Wide(0x2360ed051fc65da4u) << 64 | 0x4385df649fccf645u) + odd;
    }

    // Evenly in [0, 1), in multiples of 2^-53.
    double uniform() {
        step();
        const uint64_t folded = uint64_t(state >> 64) ^ uint64_t(state);
        const int turn = int(state >> 122);
        const uint64_t turned = folded >> turn | folded << (-turn & 63);
        return double(turned >> 11) * (1.0 / 9007199254740992.0);
    }
};

constexpr int TRIES = 10;

}  // namespace

extern "C" {

// The first word of state of each row of entropy, as SeedSequence(row).generate_state(1) gives it.
void first_words(int64_t count, int64_t words, const uint32_t* entropy, uint32_t* out) {
    for (int64_t n = 0; n < count; ++n) Mixer(entropy + n * words, words).state(1, out + n);
}

// What `random_window` draws for each image: top, left, height, width as shares. `low` and `high` are
// logarithms of the aspects `least` and `most`.
void draw_windows(int64_t count, const uint32_t* seeds, const int64_t* sizes, double small,
                  double large, double least, double most, double low, double high, double* out) {
    for (int64_t n = 0; n < count; ++n) {
        Generator rng(seeds[n]);
        double draws[2 * TRIES + 2];
        for (double& draw : draws) draw = rng.uniform();
        const double height = double(sizes[2 * n]), width = double(sizes[2 * n + 1]);
        double down = draws[2 * TRIES], right = draws[2 * TRIES + 1], rows = 0, columns = 0;
        bool fits = false;
        for (int t = 0; t < TRIES && !fits; ++t) {
            const double area = height * width * (small + draws[2 * t] * (large - small));
            const double aspect = std::exp(low + draws[2 * t + 1] * (high - low));
            rows = std::sqrt(area / aspect), columns = std::sqrt(area * aspect);
            fits = rows <= height && columns <= width;
        }
        if (!fits) {
            const double aspect = std::min(std::max(width / height, least), most);
            rows = std::min(height, width / aspect), columns = std::min(width, height * aspect);
            down = right = 0.5;
        }
        const double tall = rows / height, wide = columns / width;
        double* window = out + 4 * n;
        window[0] = down * (1 - tall), window[1] = right * (1 - wide);
        window[2] = tall, window[3] = wide;
    }
}

// What `Window.of` shows of images of these sizes: top, left, rows, columns in pixels.
void places(int64_t count, const double* windows, const int64_t* sizes, int64_t* out) {
    for (int64_t n = 0; n < count; ++n)
        for (int side = 0; side < 2; ++side) {
            const int64_t size = sizes[2 * n + side];
            const double* window = windows + 4 * n + side;
            const int64_t asked = int64_t(std::nearbyint(window[2] * double(size)));
            const int64_t length = std::max<int64_t>(1, std::min(size, asked));
            const int64_t start = int64_t(std::nearbyint(window[0] * double(size)));
            out[4 * n + side] = std::min(start, size - length);
            out[4 * n + 2 + side] = length;
        }
}

// Returns 0 if known seeds give the first words and numbers that NumPy's documentation fixes.
int check() {
    const uint32_t entropy[2] = {0, 7};
    uint32_t word = 0;
    first_words(1, 2, entropy, &word);
    return !(word == 0x51a57859u && Generator(42).uniform() == 0.7739560485559633);
}
}
