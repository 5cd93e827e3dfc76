// Area means of a grey image on a square grid, from its integral image: see `thumbnail` in
// hashes.py, whose arrays this follows operation by operation, so that both give the same bits.

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace {

// What lies above and left of a corner: whole pixels, and parts of the pixel in which it lies.
struct Corner {
    uint32_t whole;   // differences come out right where a large image runs over 32 bits
    double inside;
};

}  // namespace

extern "C" {

// `table` has the integral image's rows of `stride` numbers. For each of `side` + 1 corners down,
// then right: the pixel in which it lies, and how far in it. `out` has `side` x `side` means.
void thumbnail(const uint32_t* table, int64_t stride, int64_t side, const int64_t* pixels,
               const double* parts, double scale, float* out) {
    const int64_t corners = side + 1;
    std::vector<Corner> above(corners), here(corners);
    for (int64_t i = 0; i < corners; ++i) {
        const uint32_t* top = table + pixels[i] * stride;
        const double down = parts[i];
        for (int64_t j = 0; j < corners; ++j) {
            const int64_t x = pixels[corners + j];
            const double right = parts[corners + j];
            const uint32_t at = top[x], row = top[x + 1] - at, column = top[x + stride] - at;
            const uint32_t both = top[x + stride + 1] - at - row - column;
            double inside = right * int32_t(both);
            inside += int32_t(column);
            inside *= down;
            inside += right * int32_t(row);
            here[j] = {at, inside};
        }
        for (int64_t j = 0; i && j < side; ++j) {
            double sum = (here[j + 1].inside - above[j + 1].inside) -
                         (here[j].inside - above[j].inside);
            sum += int32_t((here[j + 1].whole - above[j + 1].whole) -
                           (here[j].whole - above[j].whole));
            *out++ = float(std::nearbyint(sum * scale) / 512);
        }
        std::swap(above, here);
    }
}

// Returns 0 if the four pixels of an image, halved and whole, have the means that they have.
int check() {
    const uint32_t table[9] = {0, 0, 0, 0, 10, 30, 0, 40, 100};   // of 10 20 / 30 40
    const int64_t pixels[6] = {0, 1, 1, 0, 1, 1}, ends[4] = {0, 1, 0, 1};
    const double parts[6] = {0, 0, 1, 0, 0, 1}, whole[4] = {0, 1, 0, 1};
    float four[4], one[1];
    thumbnail(table, 3, 2, pixels, parts, 512, four);
    thumbnail(table, 3, 1, ends, whole, 128, one);
    return four[0] == 10 && four[1] == 20 && four[2] == 30 && four[3] == 40 && one[0] == 25 ? 0 : 1;
}
}
