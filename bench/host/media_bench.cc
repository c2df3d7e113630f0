// SPDX-License-Identifier: Apache-2.0
// How fast screenshots of 1920 x 1080 become patch rows: milliseconds of a core for each step, and images a
// second on several. The pictures are drawn here: windows, text, a photograph. Processor time, not wall time,
// is what one core's figures are: they hold beside other programs.
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/threads/thread_pool.h"
#include "media/encoders.h"
#include "media/patches.h"
#include "media/prepare.h"

namespace {

using sparrow::Image;
namespace test = sparrow::test;

constexpr int kWidth = 1920, kHeight = 1080, kImages = 64, kRounds = 20;

double cpu_ms() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) * 1e3 + double(now.tv_nsec) * 1e-6;
}

void fill(Image& image, int left, int top, int width, int height, std::array<uint8_t, 3> colour) {
  for (int y = top; y < std::min(top + height, kHeight); ++y)
    for (int x = left; x < std::min(left + width, kWidth); ++x)
      std::copy(colour.begin(), colour.end(), image.rgb.begin() + 3 * (int64_t{y} * kWidth + x));
}

// Letters of 6 x 10 with gray edges, out of 26 shapes.
void write_text(Image& image, int left, int top, int width, int height, std::mt19937& random) {
  for (int y = top; y + 10 < std::min(top + height, kHeight); y += 16)
    for (int x = left; x + 6 < std::min(left + width, kWidth); x += 8) {
      if (random() % 6 == 0) continue;  // a space
      std::mt19937 letter(static_cast<uint32_t>(random() % 26));
      for (int row = 0; row < 10; ++row)
        for (int column = 0; column < 6; ++column) {
          const uint32_t ink = letter() % 4;
          const auto level = static_cast<uint8_t>(ink == 0 ? 30 : ink == 1 ? 140 : 255);
          if (level != 255) fill(image, x + column, y + row, 1, 1, {level, level, level});
        }
    }
}

Image screenshot(uint32_t seed) {
  std::mt19937 random(seed);
  Image image{.width = kWidth, .height = kHeight};
  image.rgb.assign(size_t{3} * kWidth * kHeight, 0);
  fill(image, 0, 0, kWidth, kHeight, {36, 52, 84});
  for (int window = 0; window < 3; ++window) {
    const int left = static_cast<int>(random() % 700), top = static_cast<int>(random() % 300);
    fill(image, left, top, 1100, 720, {255, 255, 255});
    fill(image, left, top, 1100, 28, {214, 218, 226});
    write_text(image, left + 12, top + 40, 1060, 660, random);
  }
  const Image photo = test::smooth_image(480, 360);
  for (int y = 0; y < 360; ++y)
    for (int x = 0; x < 480; ++x) {
      std::array<uint8_t, 3> colour;
      for (int c = 0; c < 3; ++c)
        colour[c] = static_cast<uint8_t>(photo.rgb[3 * (480 * y + x) + c] + static_cast<int>(random() % 13));
      fill(image, 1380 + x, 640 + y, 1, 1, colour);
    }
  return image;
}

struct Steps {
  double header = 0, decode = 0, resize = 0, patches = 0;
};

void measure(const char* name, const std::vector<std::string>& files, sparrow::ThreadPool& pool) {
  Steps steps;
  for (int i = 0; i < kRounds; ++i) {
    const auto file = std::as_bytes(std::span(files[static_cast<size_t>(i) % files.size()]));
    const double start = cpu_ms();
    const auto size = sparrow::planned_size(file, {}, {}).value();
    const double header = cpu_ms();
    const Image image = sparrow::decode_image(file, {}).value();
    const double decoded = cpu_ms();
    Image resized;
    sparrow::resize_bicubic(image, size, resized);
    const double done = cpu_ms();
    const auto patches = sparrow::patches_of_image(resized);
    steps.header += header - start, steps.decode += decoded - header, steps.resize += done - decoded;
    steps.patches += cpu_ms() - done;
  }
  const auto start = std::chrono::steady_clock::now();
  pool.parallel_for(kImages, [&](int64_t i, int) {
    const auto file = std::as_bytes(std::span(files[static_cast<size_t>(i) % files.size()]));
    if (!sparrow::prepare_image(file, {}, {}).ok()) std::abort();
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double core = (steps.header + steps.decode + steps.resize + steps.patches) / kRounds;
  std::printf("%-14s %8zu %8.3f %8.2f %8.2f %8.2f %10.2f %12.1f %12.1f\n", name, files[0].size() / 1024,
              steps.header / kRounds, steps.decode / kRounds, steps.resize / kRounds, steps.patches / kRounds,
              core, 1e3 / core, kImages / seconds);
}

}  // namespace

int main(int argc, char** argv) {
  sparrow::ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : sparrow::ThreadPool::default_size());
  std::vector<Image> images;
  for (uint32_t seed = 0; seed < 8; ++seed) images.push_back(screenshot(seed));
  const auto encoded = [&](auto encode) {
    std::vector<std::string> files;
    for (const Image& image : images) files.push_back(encode(image));
    return files;
  };
  std::printf("%-14s %8s %8s %8s %8s %8s %10s %12s %9d thr.\n", "1920 x 1080", "KiB", "header", "decode",
              "resize", "patches", "ms a core", "images/s", pool.size());
  measure("png", encoded([](const Image& image) { return test::encode_png(image); }), pool);
  measure("jpeg 4:2:0", encoded([](const Image& image) { return test::encode_jpeg(image, {.quality = 85}); }),
          pool);
  measure("jpeg 4:4:4", encoded([](const Image& image) {
            return test::encode_jpeg(image, {.quality = 90, .luma_across = 1, .luma_down = 1});
          }),
          pool);
  measure("jpeg progr.", encoded([](const Image& image) {
            return test::encode_jpeg(image, {.quality = 85, .progressive = true});
          }),
          pool);
  measure("webp", encoded([](const Image& image) { return test::encode_webp(image, false); }), pool);
  return 0;
}
