// Bilinear resize of 8-bit RGB, row by row of the output: two rows of the source are blended into
// one of 16 bits, in which the columns are blended. All is integer arithmetic, so every instruction
// set gives the same bytes. Weights are multiples of 1/256.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

struct Tap {
    int32_t from;             // the first of two neighbours
    uint16_t first, second;   // their weights, 256 together
};

// Centres of pixels lie at halves; beyond the outer centres the edge goes on.
void set_taps(int source, int target, Tap* taps) {
    const double step = double(source) / target;
    for (int n = 0; n < target; ++n) {
        const double at = std::min(std::max((n + 0.5) * step - 0.5, 0.0), double(source - 1));
        const int from = std::max(0, std::min(int(at), source - 2));
        const int second = int((at - from) * 256 + 0.5);
        taps[n] = {from, uint16_t(256 - second), uint16_t(second)};
    }
}

// out = 256 * (a, weighted by 1 - weight / 256, and b by weight / 256), with the top bit flipped:
// signed numbers, as the product of 16 bits wants them.
void blend_rows(const uint8_t* a, const uint8_t* b, int weight, int count, uint16_t* out) {
    int i = 0;
#if defined(__AVX512BW__)
    const __m512i by_32 = _mm512_set1_epi16(int16_t(weight));
    const __m512i top_32 = _mm512_set1_epi16(int16_t(0x8000));
    for (; i + 32 <= count; i += 32) {
        const __m512i p = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)(a + i)));
        const __m512i q = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)(b + i)));
        const __m512i moved = _mm512_mullo_epi16(_mm512_sub_epi16(q, p), by_32);
        const __m512i sum = _mm512_add_epi16(_mm512_slli_epi16(p, 8), moved);
        _mm512_storeu_si512(out + i, _mm512_xor_si512(sum, top_32));
    }
#endif
#if defined(__AVX2__)
    const __m256i by = _mm256_set1_epi16(int16_t(weight));
    const __m256i top = _mm256_set1_epi16(int16_t(0x8000));
    for (; i + 16 <= count; i += 16) {
        const __m256i p = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)(a + i)));
        const __m256i q = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)(b + i)));
        // Modulo 2^16, which the sum never leaves.
        const __m256i moved = _mm256_mullo_epi16(_mm256_sub_epi16(q, p), by);
        const __m256i sum = _mm256_add_epi16(_mm256_slli_epi16(p, 8), moved);
        _mm256_storeu_si256((__m256i*)(out + i), _mm256_xor_si256(sum, top));
    }
#endif
    for (; i < count; ++i) out[i] = uint16_t((a[i] * (256 - weight) + b[i] * weight) ^ 0x8000);
}

constexpr int AHEAD = 8;   // rows of the result: a cached image lies in memory, not in the caches

void fetch(const uint8_t* row, int64_t count) {
#if defined(__GNUC__)
    for (int64_t i = 0; i < count; i += 64) __builtin_prefetch(row + i);
#endif
}

constexpr int32_t ROUND = (1 << 23) + (1 << 15);   // the flipped bit, weighted 256; and a half

void blend_columns(const uint16_t* row, const Tap* taps, int target, uint8_t* out) {
    int n = 0;
#if defined(__AVX2__)
    // r0 g0 b0 r1 g1 b1 -> r0 r1 g0 g1 b0 b1
    const __m256i pairs = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1));
    const __m128i close = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const __m256i round = _mm256_set1_epi32(ROUND);
    const auto two = [&](int at) {
        const Tap &left = taps[at], &right = taps[at + 1];
        const __m128i low = _mm_loadu_si128((const __m128i*)(row + 3 * left.from));
        const __m128i high = _mm_loadu_si128((const __m128i*)(row + 3 * right.from));
        int32_t low_by, high_by;
        std::memcpy(&low_by, &left.first, 4);
        std::memcpy(&high_by, &right.first, 4);
        const __m256i by = _mm256_set_m128i(_mm_set1_epi32(high_by), _mm_set1_epi32(low_by));
        const __m256i both = _mm256_shuffle_epi8(_mm256_set_m128i(high, low), pairs);
        return _mm256_srai_epi32(_mm256_add_epi32(_mm256_madd_epi16(both, by), round), 16);
    };
    // Four pixels are 12 bytes, and 16 are written: the last pixels are left to the loop below.
    for (; n + 6 <= target; n += 4) {
        const __m256i words = _mm256_packs_epi32(two(n), two(n + 2));   // 0 2 | 1 3
        const __m256i bytes = _mm256_packus_epi16(words, words);
        const __m128i four = _mm_unpacklo_epi32(
            _mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
        _mm_storeu_si128((__m128i*)(out + 3 * n), _mm_shuffle_epi8(four, close));
    }
#endif
    for (; n < target; ++n)
        for (int c = 0; c < 3; ++c) {
            const uint16_t* at = row + 3 * taps[n].from + c;
            const int32_t sum = int16_t(at[0]) * taps[n].first + int16_t(at[3]) * taps[n].second;
            out[3 * n + c] = uint8_t((sum + ROUND) >> 16);
        }
}

#if defined(__AVX512BW__)
constexpr int STEP = 16;   // results of a step: channels of pixels, across the ends of pixels

// Where 16 results come from, the same in every row: each is a pair of words at most 63 from `from`.
struct Step {
    int32_t from;
    bool near;                   // all within 32 words
    alignas(64) uint16_t places[2 * STEP];
    alignas(64) uint16_t weights[2 * STEP];
};

// Returns no steps where the image becomes so much smaller that 16 results come from more words.
std::vector<Step> steps_of(const Tap* taps, int target) {
    std::vector<Step> steps(3 * target / STEP);
    for (size_t k = 0; k < steps.size(); ++k) {
        Step& step = steps[k];
        step.from = 3 * taps[k * STEP / 3].from;
        int furthest = 0;
        for (int j = 0; j < STEP; ++j) {
            const int result = int(k) * STEP + j;
            const Tap& tap = taps[result / 3];
            const int place = 3 * tap.from + result % 3 - step.from;
            furthest = std::max(furthest, place + 3);
            step.places[2 * j] = uint16_t(place), step.places[2 * j + 1] = uint16_t(place + 3);
            step.weights[2 * j] = tap.first, step.weights[2 * j + 1] = tap.second;
        }
        if (furthest > 63) return {};
        step.near = furthest < 32;
    }
    return steps;
}

void blend_steps(const uint16_t* row, const std::vector<Step>& steps, uint8_t* out) {
    const __m512i round = _mm512_set1_epi32(ROUND);
    for (const Step& step : steps) {
        const uint16_t* at = row + step.from;
        const __m512i places = _mm512_load_si512(step.places);
        const __m512i low = _mm512_loadu_si512(at);
        const __m512i pairs =
            step.near ? _mm512_permutexvar_epi16(places, low)
                      : _mm512_permutex2var_epi16(low, places, _mm512_loadu_si512(at + 32));
        const __m512i sums = _mm512_madd_epi16(pairs, _mm512_load_si512(step.weights));
        const __m512i levels = _mm512_srai_epi32(_mm512_add_epi32(sums, round), 16);
        _mm_storeu_si128((__m128i*)out, _mm512_cvtepi32_epi8(levels));
        out += STEP;
    }
}
#endif

}  // namespace

extern "C" {

// Pixels of a source row are contiguous, `stride` bytes from row to row; the output is contiguous.
void resize(const uint8_t* source, int64_t height, int64_t width, int64_t stride, uint8_t* out,
            int64_t rows, int64_t columns) {
    std::vector<Tap> taps(rows + columns);
    std::vector<uint16_t> blended(3 * (width + 1) + 64);   // a load reads past the last pixel
    set_taps(int(height), int(rows), taps.data());
    set_taps(int(width), int(columns), taps.data() + rows);
    int done = 0;   // pixels of a row that are blended in steps; the last of them may be a part
#if defined(__AVX512BW__)
    const std::vector<Step> steps = steps_of(taps.data() + rows, int(columns));
    done = int(steps.size()) * STEP / 3;
#endif
    for (int64_t n = 0; n < rows; ++n) {
        const int64_t ahead = taps[std::min(n + AHEAD, rows - 1)].from + 1;
        fetch(source + std::min(ahead, height - 1) * stride, 3 * width);
        const uint8_t* first = source + taps[n].from * stride;
        const uint8_t* second = height > 1 ? first + stride : first;
        blend_rows(first, second, taps[n].second, int(3 * width), blended.data());
        if (width == 1) std::copy_n(blended.data(), 3, blended.data() + 3);
        uint8_t* row = out + n * 3 * columns;
        blend_columns(
            blended.data(), taps.data() + rows + done, int(columns) - done, row + 3 * done);
#if defined(__AVX512BW__)
        blend_steps(blended.data(), steps, row);
#endif
    }
}

// Views in the same memory, each given by where it begins, height, width and stride, to contiguous
// results one after the other.
void resize_all(const uint8_t* memory, int64_t count, const int64_t* views, uint8_t* out,
                int64_t rows, int64_t columns) {
    for (int64_t n = 0; n < count; ++n, views += 4)
        resize(memory + views[0], views[1], views[2], views[3], out + n * 3 * rows * columns, rows,
               columns);
}

// Returns 0 if small images of several sizes are what plain loops make of them. A processor that
// lacks an instruction ends the process here.
int check() {
    int wrong = 0;
    for (int width : {1, 2, 19, 40})
        for (int target : {1, 3, 8, 17}) {
            const int height = 23 - width / 2;
            std::vector<uint8_t> source(3 * height * width), out(3 * target * target);
            for (size_t i = 0; i < source.size(); ++i) source[i] = uint8_t(i * 97 + i / 7);
            std::vector<Tap> down(target), right(target);
            set_taps(height, target, down.data());
            set_taps(width, target, right.data());
            resize(source.data(), height, width, 3 * width, out.data(), target, target);
            for (int y = 0; y < target; ++y)
                for (int x = 0; x < 3 * target; ++x) {
                    const Tap &v = down[y], &h = right[x / 3];
                    const auto pixel = [&](int row, int column) {
                        row = std::min(row, height - 1), column = std::min(column, width - 1);
                        return int(source[3 * (row * width + column) + x % 3]);
                    };
                    const auto blended = [&](int column) {
                        return pixel(v.from, column) * v.first + pixel(v.from + 1, column) * v.second;
                    };
                    const int sum = blended(h.from) * h.first + blended(h.from + 1) * h.second;
                    wrong += out[3 * target * y + x] != ((sum + (1 << 15)) >> 16);
                }
        }
    return wrong != 0;
}
}
