// Colours of one RGB to another by curves and a matrix, in place: three tables are added, a fourth
// has the result's curve. Whole numbers alone, so that NumPy's way gives the same pixels.

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

constexpr int32_t SHIFT = 13, LAST = 1 << 14;

typedef int32_t Four __attribute__((vector_size(16), aligned(4)));

}  // namespace

extern "C" {

// `columns`: for each channel and level what it adds to red, green, blue, and one unused number.
void convert(uint8_t* __restrict pixels, int64_t count, const int32_t* __restrict columns,
             const uint8_t* __restrict curve) {
    const Four* tables = reinterpret_cast<const Four*>(columns);
    const Four least = {0, 0, 0, 0}, most = {LAST, LAST, LAST, LAST};
    for (int64_t n = 0; n < count; ++n, pixels += 3) {
        Four sum = (tables[pixels[0]] + tables[256 + pixels[1]] + tables[512 + pixels[2]]) >> SHIFT;
        sum = sum > least ? sum : least;
        sum = sum < most ? sum : most;
        uint64_t two;
        std::memcpy(&two, &sum, 8);
        pixels[0] = curve[uint32_t(two)];
        pixels[1] = curve[two >> 32];
        pixels[2] = curve[sum[2]];
    }
}

int check() {
    static int32_t columns[3 * 256 * 4];
    static uint8_t curve[LAST + 1];
    for (int c = 0; c < 3; ++c)
        for (int v = 0; v < 256; ++v)
            for (int i = 0; i < 3; ++i)
                columns[4 * (256 * c + v) + i] = v * (c == i ? 64 : -1) * (1 << SHIFT);
    for (int i = 0; i <= LAST; ++i) curve[i] = uint8_t(std::min(255, i >> 6));
    uint8_t pixels[6] = {0, 255, 10, 255, 200, 100};
    const uint8_t right[6] = {0, 254, 6, 250, 194, 92};
    convert(pixels, 2, columns, curve);
    return std::equal(pixels, pixels + 6, right) ? 0 : 1;
}
}
