// A convolution that skips the zeros of its input (Shi and Chu 2017, arXiv 1704.07724).
//
// Images lie as N x H x W x C. First the non-zero values of every pixel are listed, in blocks of
// CB input channels; NaN counts as non-zero. Then each value is multiplied by the weights of KB
// output channels, which lie together: [K / KB][C / CB][kh][ci][kw][KB]. The block of one kernel
// row stays in the first cache while all rows of the image pass.
//
// A 3 x 3 kernel of stride 1 sweeps the input's columns, since a value belongs to three columns
// of the output; all other kernels gather for each column of the output.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float Vector __attribute__((vector_size(LANES * 4)));

namespace {

constexpr int CB = 64;
constexpr int SWEEP = 4, GATHER = 8;  // vectors of output channels in a block

struct Shape {
    int64_t images, height, width, channels;           // of the input, all groups
    int64_t out_height, out_width, out_channels;       // of the output, all groups
    int64_t first_in, first_out, own_in, own_out;      // channels of one group
    int64_t kernel_height, kernel_width, stride, pad_y, pad_x;
    int64_t relu, threads;
};

struct Listed {
    std::vector<float> value;
    std::vector<int32_t> place;  // of a channel inside its block
    std::vector<int32_t> count;  // of a pixel and block
    int64_t blocks;
};

int64_t blocks_of(int64_t channels, int64_t size) { return (channels + size - 1) / size; }

template <class Work>
void split(int64_t count, int64_t threads, Work work) {
    if (threads < 2 || count < 2) return work(int64_t(0), count);
    std::vector<std::thread> others;
    const int64_t parts = std::min(threads, count);
    for (int64_t part = 1; part < parts; ++part)
        others.emplace_back(work, count * part / parts, count * (part + 1) / parts);
    work(int64_t(0), count / parts);
    for (auto& other : others) other.join();
}

#if defined(__AVX2__) && !defined(__AVX512F__)
struct Compression {
    alignas(32) int32_t lanes[256][8] = {};  // by mask: the lanes that are set, first of all
    Compression() {
        for (int mask = 0; mask < 256; ++mask)
            for (int lane = 0, found = 0; lane < 8; ++lane)
                if (mask >> lane & 1) lanes[mask][found++] = lane;
    }
};
const Compression COMPRESSION;
#endif

void list(const float* input, const Shape& s, Listed& listed) {
    const int64_t pixels = s.images * s.height * s.width;
    listed.blocks = blocks_of(s.own_in, CB);
    listed.value.resize(pixels * listed.blocks * CB);
    listed.place.resize(pixels * listed.blocks * CB);
    listed.count.resize(pixels * listed.blocks);
    split(pixels, s.threads, [&](int64_t first, int64_t last) {
        for (int64_t pixel = first; pixel < last; ++pixel) {
            const float* from = input + pixel * s.channels + s.first_in;
            for (int64_t block = 0; block < listed.blocks; ++block) {
                const int64_t at = (block * pixels + pixel) * CB;
                float* value = listed.value.data() + at;
                int32_t* place = listed.place.data() + at;
                const int most = std::min<int64_t>(CB, s.own_in - block * CB);
                const float* own = from + block * CB;
                int found = 0, c = 0;
#if defined(__AVX512F__)
                // A whole vector is written each time; it ends inside the block, as found <= c.
                const __m512i counting = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,
                                                           12, 13, 14, 15);
                for (; c + 16 <= most; c += 16) {
                    const __m512 x = _mm512_loadu_ps(own + c);
                    const __mmask16 some =
                        _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_UQ);
                    const __m512i places = _mm512_add_epi32(counting, _mm512_set1_epi32(c));
                    _mm512_storeu_ps(value + found, _mm512_maskz_compress_ps(some, x));
                    _mm512_storeu_si512(place + found,
                                        _mm512_maskz_compress_epi32(some, places));
                    found += __builtin_popcount(some);
                }
#elif defined(__AVX2__)
                for (; c + 8 <= most; c += 8) {
                    const __m256 x = _mm256_loadu_ps(own + c);
                    const int some = _mm256_movemask_ps(
                        _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_UQ));
                    const __m256i lanes = _mm256_load_si256(
                        reinterpret_cast<const __m256i*>(COMPRESSION.lanes[some]));
                    _mm256_storeu_ps(value + found, _mm256_permutevar8x32_ps(x, lanes));
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(place + found),
                                        _mm256_add_epi32(lanes, _mm256_set1_epi32(c)));
                    found += __builtin_popcount(some);
                }
#endif
                for (; c < most; ++c) {  // without a branch: zeros are overwritten
                    value[found] = own[c];
                    place[found] = c;
                    found += own[c] != 0.0f;
                }
                listed.count[block * pixels + pixel] = found;
            }
        }
    });
}

// One row of the output, 3 x 3 and stride 1: column x of the input adds to x - 1, x and x + 1.
// Vectors are copied one by one: arrays that are copied as a whole stay in memory for each column.
void sweep(const Listed& listed, const Shape& s, int64_t line, int64_t block, const float* weights,
           Vector* sums) {
    const int64_t pixels = s.images * s.height * s.width;
    Vector left[SWEEP], middle[SWEEP], right[SWEEP];
    for (int i = 0; i < SWEEP; ++i) {
        left[i] = right[i] = Vector{};
        middle[i] = sums[i];
    }
    for (int64_t x = 0; x < s.width; ++x) {
        if (x + 1 < s.width)
            for (int i = 0; i < SWEEP; ++i) right[i] = sums[(x + 1) * SWEEP + i];
        const int64_t pixel = block * pixels + line * s.width + x;
        const float* value = listed.value.data() + pixel * CB;
        const int32_t* place = listed.place.data() + pixel * CB;
        const int32_t count = listed.count[pixel];
        for (int32_t n = 0; n < count; ++n) {
            const float* w = weights + int64_t(place[n]) * 3 * SWEEP * LANES;
            const float v = value[n];
            for (int i = 0; i < SWEEP; ++i) {
                Vector one;
                std::memcpy(&one, w + i * LANES, sizeof one);
                right[i] += v * one;
                std::memcpy(&one, w + (SWEEP + i) * LANES, sizeof one);
                middle[i] += v * one;
                std::memcpy(&one, w + (2 * SWEEP + i) * LANES, sizeof one);
                left[i] += v * one;
            }
        }
        if (x > 0)
            for (int i = 0; i < SWEEP; ++i) sums[(x - 1) * SWEEP + i] = left[i];
        for (int i = 0; i < SWEEP; ++i) {
            left[i] = middle[i];
            middle[i] = right[i];
        }
    }
    for (int i = 0; i < SWEEP; ++i) sums[(s.width - 1) * SWEEP + i] = left[i];
}

// One row of the output, any kernel and stride.
void gather(const Listed& listed, const Shape& s, int64_t line, int64_t block,
            const float* weights, Vector* sums) {
    const int64_t pixels = s.images * s.height * s.width;
    for (int64_t x = 0; x < s.out_width; ++x) {
        Vector sum[GATHER];
        for (int i = 0; i < GATHER; ++i) sum[i] = sums[x * GATHER + i];
        for (int64_t k = 0; k < s.kernel_width; ++k) {
            const int64_t column = x * s.stride + k - s.pad_x;
            if (column < 0 || column >= s.width) continue;
            const int64_t pixel = block * pixels + line * s.width + column;
            const float* value = listed.value.data() + pixel * CB;
            const int32_t* place = listed.place.data() + pixel * CB;
            const int32_t count = listed.count[pixel];
            for (int32_t n = 0; n < count; ++n) {
                const float* w =
                    weights + (int64_t(place[n]) * s.kernel_width + k) * GATHER * LANES;
                const float v = value[n];
                for (int i = 0; i < GATHER; ++i) {
                    Vector one;
                    std::memcpy(&one, w + i * LANES, sizeof one);
                    sum[i] += v * one;
                }
            }
        }
        for (int i = 0; i < GATHER; ++i) sums[x * GATHER + i] = sum[i];
    }
}

// Brings a part of the weights that come next into the second cache. The zeros decide which of them
// are read, so the processor does not see them coming.
void fetch(const float* next, int64_t count, int64_t part, int64_t parts) {
    constexpr int64_t LINE = 16;
    const int64_t lines = count / LINE;
    for (int64_t n = lines * part / parts; n < lines * (part + 1) / parts; ++n)
        __builtin_prefetch(next + n * LINE, 0, 2);
}

bool sweeps(const Shape& s) {
    return s.kernel_height == 3 && s.kernel_width == 3 && s.stride == 1 && s.pad_x == 1;
}

}  // namespace

extern "C" {

int64_t block_channels(int64_t sweeping) { return (sweeping ? SWEEP : GATHER) * LANES; }

int64_t input_block() { return CB; }

// weights: [K / KB][C / CB][kh][CB][kw][KB] of one group; bias: its output channels; residual: as
// the output, added before the ReLU, or none.
void convolve(const float* input, const float* weights, const float* bias, const float* residual,
              float* output, const Shape* shape) {
    const Shape& s = *shape;
    static thread_local Listed memory;  // serves the next call of this thread
    Listed& listed = memory;            // and by this name also the threads of this call
    list(input, s, listed);
    const bool sweeping = sweeps(s);
    const int64_t size = block_channels(sweeping);
    const int64_t taps = CB * s.kernel_width * size;  // weights of one row of a kernel
    split(s.images * s.out_height, s.threads, [&](int64_t first, int64_t last) {
        // Sums lie together: in the output they would be a whole pixel apart, in the same few sets
        // of the cache.
        static thread_local std::vector<float> room;
        const int64_t outputs = (last - first) * s.out_width;
        room.resize(outputs * size + LANES);
        const auto address = reinterpret_cast<std::uintptr_t>(room.data());
        float* sums = room.data() + (-address % sizeof(Vector)) / sizeof(float);
        for (int64_t k = 0; k < blocks_of(s.own_out, size); ++k) {
            const int64_t channels = std::min(size, s.own_out - k * size);
            for (int64_t n = 0; n < outputs; ++n)
                std::memcpy(sums + n * size, bias + k * size, sizeof(float) * channels);
            for (int64_t block = 0; block < listed.blocks; ++block)
                for (int64_t tap = 0; tap < s.kernel_height; ++tap) {
                    const float* w =
                        weights + ((k * listed.blocks + block) * s.kernel_height + tap) * taps;
                    for (int64_t row = first; row < last; ++row) {
                        fetch(w + taps, taps, row - first, last - first);
                        const int64_t y = row % s.out_height * s.stride + tap - s.pad_y;
                        if (y < 0 || y >= s.height) continue;
                        const int64_t line = row / s.out_height * s.height + y;
                        auto* to = reinterpret_cast<Vector*>(
                            sums + (row - first) * s.out_width * size);
                        (sweeping ? sweep : gather)(listed, s, line, block, w, to);
                    }
                }
            for (int64_t n = 0; n < outputs; ++n) {
                const float* from = sums + n * size;
                const int64_t at = (first * s.out_width + n) * s.out_channels + s.first_out +
                                   k * size;
                // NaN stays NaN, as in torch.
                for (int64_t c = 0; c < channels; ++c) {
                    const float sum = residual ? from[c] + residual[at + c] : from[c];
                    output[at + c] = s.relu && sum < 0.0f ? 0.0f : sum;
                }
            }
        }
    });
}

// Returns 0 if small convolutions of every kind are what plain loops make of them. A processor,
// or what stands for it, that lacks an instruction ends the process here.
int check() {
    int wrong = 0;
    for (int64_t kernel : {1, 3})
        for (int64_t stride : {1, 2}) {
            const int64_t side = 9, in = CB + 13, pad = kernel / 2;
            const int64_t out_side = (side + 2 * pad - kernel) / stride + 1;
            Shape s = {2, side, side, in, out_side, out_side, 0, 0, 0, in, 0,
                       kernel, kernel, stride, pad, pad, 1, 2};
            const int64_t size = block_channels(sweeps(s)), out = size + 3;
            s.out_channels = s.own_out = out;
            const int64_t blocks = blocks_of(in, CB), taps = CB * kernel * size;
            std::vector<float> input(2 * side * side * in), bias(out);
            std::vector<float> output(2 * out_side * out_side * out), residual(output.size());
            std::vector<float> packed(blocks_of(out, size) * blocks * kernel * taps + LANES);
            uint32_t state = 1;
            const auto next = [&state] {
                state = state * 1664525u + 1013904223u;
                return int32_t(state >> 16) / 32768.0f - 1.0f;
            };
            for (float& x : input) x = std::max(0.0f, next());
            for (auto* some : {&bias, &packed, &residual})
                for (float& x : *some) x = next();
            const auto address = reinterpret_cast<std::uintptr_t>(packed.data());
            const float* weights = packed.data() + (-address % sizeof(Vector)) / sizeof(float);
            convolve(input.data(), weights, bias.data(), residual.data(), output.data(), &s);
            for (int64_t n = 0; n < 2; ++n)
                for (int64_t y = 0; y < out_side; ++y)
                    for (int64_t x = 0; x < out_side; ++x)
                        for (int64_t k = 0; k < out; ++k) {
                            const int64_t at = ((n * out_side + y) * out_side + x) * out + k;
                            double sum = double(bias[k]) + residual[at];
                            for (int64_t i = 0; i < kernel; ++i)
                                for (int64_t j = 0; j < kernel; ++j) {
                                    const int64_t row = y * stride + i - pad;
                                    const int64_t column = x * stride + j - pad;
                                    if (row < 0 || column < 0 || row >= side || column >= side)
                                        continue;
                                    for (int64_t c = 0; c < in; ++c)
                                        sum += double(input[((n * side + row) * side + column) *
                                                                in + c]) *
                                               weights[((k / size * blocks + c / CB) * kernel +
                                                        i) * taps +
                                                       (c % CB * kernel + j) * size + k % size];
                                }
                            const double off = std::max(sum, 0.0) - output[at];
                            wrong |= !(off < 1e-3 && off > -1e-3);
                        }
        }
    return wrong;
}

}  // extern "C"
