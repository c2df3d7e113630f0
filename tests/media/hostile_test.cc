// SPDX-License-Identifier: Apache-2.0
// Hostile files by name: each is an error or an image, within the memory that its header allows.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <fstream>

#include "media/encoders.h"
#include "media/image.h"
#include "media/vision_golden.h"

namespace sparrow::test {
namespace {

using testing::AssertionResult;

std::string be(uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> 8 * i);
  return text;
}
std::string le(uint64_t value, int bytes) {
  const std::string text = be(value, bytes);
  return {text.rbegin(), text.rend()};
}

std::string png_chunk(const std::string& name, const std::string& data) {
  const std::string body = name + data;
  const uLong sum = crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return be(data.size(), 4) + body + be(sum, 4);
}

// A PNG of 8 bit gray whose header says any size, with some pixels behind it.
std::string png_of(uint32_t width, uint32_t height, size_t stored_bytes) {
  const std::string raw(stored_bytes, '\0');
  uLongf size = compressBound(raw.size());
  std::string packed(size, '\0');
  compress2(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(raw.data()),
            raw.size(), 9);
  packed.resize(size);
  return "\x89PNG\r\n\x1a\n" +
         png_chunk("IHDR", be(width, 4) + be(height, 4) + std::string("\x08\0\0\0\0", 5)) +
         png_chunk("IDAT", packed) + png_chunk("IEND", "");
}

std::string error_of(const std::string& file, const DecodeLimits& limits = {}) {
  const auto image = decode_image(bytes_of(file), limits);
  return image.ok() ? "" : image.error().message;
}

// Every file that is in truth another size than its header says, or has none.
TEST(Hostile, BombsAreRefusedByTheirHeader) {
  const std::string bomb = png_of(50000, 50000, 100'000);
  EXPECT_LT(bomb.size(), 1024u);
  EXPECT_NE(error_of(bomb).find("50000 x 50000"), std::string::npos) << error_of(bomb);
  EXPECT_FALSE(admit_image(bytes_of(bomb), DecodeLimits{}).ok());
  EXPECT_TRUE(read_header(bytes_of(bomb)).ok());
  const std::string gif = "GIF89a" + le(65535, 2) + le(65535, 2) + le(0x80, 1) + le(0, 2) +
                          std::string(6, '\0') + "," + le(0, 4) + le(10, 2) + le(10, 2) + le(0, 1) + le(2, 1);
  EXPECT_NE(error_of(gif).find("65535 x 65535"), std::string::npos) << error_of(gif);
  std::string jpeg = encode_jpeg(smooth_image(16, 16), {});
  const size_t size_at = jpeg.find("\xff\xc0") + 5;
  jpeg.replace(size_at, 4, "\xff\xff\xff\xff");
  EXPECT_NE(error_of(jpeg).find("65535 x 65535"), std::string::npos) << error_of(jpeg);
  std::string webp = encode_webp(random_image(16, 16, 1), true);
  webp.replace(21, 4, "\xff\xff\xff\x0f");
  EXPECT_NE(error_of(webp).find("16384 x 16384"), std::string::npos) << error_of(webp);
  EXPECT_NE(error_of(vision_file("images/big.jpg"), {.max_bytes = 1000}).find("1000 is the limit"),
            std::string::npos);
}

TEST(Hostile, HeadersThatLieAreErrors) {
  EXPECT_NE(error_of(png_of(2000, 2000, 100)), "");
  EXPECT_NE(error_of(png_of(0, 10, 100)), "");
  EXPECT_NE(error_of(png_of(0x80000000u, 1, 100)), "");
  // Two frame headers: the first is what the limits saw.
  std::string jpeg = encode_jpeg(smooth_image(16, 16), {});
  const size_t frame = jpeg.find("\xff\xc0");
  const std::string second = jpeg.substr(frame, 19);
  jpeg.insert(frame, second);
  EXPECT_NE(error_of(jpeg), "");
  // An extended WebP whose canvas is not its picture's size, and a frame that leaves its canvas.
  const auto riff = [](const std::string& body) { return "RIFF" + le(body.size(), 4) + body; };
  const std::string bitstream = encode_webp(random_image(16, 16, 1), true).substr(12);
  const auto extended = [](int flags, int side) {
    return "WEBPVP8X" + le(10, 4) + le(flags, 4) + le(side - 1, 3) + le(side - 1, 3);
  };
  EXPECT_NE(error_of(riff(extended(0, 8) + bitstream)), "");
  EXPECT_NE(error_of(riff(extended(0, 9000) + bitstream)), "");
  const std::string place = le(4, 6) + le(15, 3) + le(15, 3) + le(0, 4);
  EXPECT_NE(error_of(riff(extended(2, 16) + "ANMF" + le(16 + bitstream.size(), 4) + place + bitstream)), "");
  const std::string liar = le(0, 6) + le(7, 3) + le(7, 3) + le(0, 4);
  EXPECT_NE(error_of(riff(extended(2, 16) + "ANMF" + le(16 + bitstream.size(), 4) + liar + bitstream)), "");
}

TEST(Hostile, AFileCutAnywhereIsAnErrorOrTheWholeImage) {
  std::vector<std::string> files = {
      encode_jpeg(smooth_image(24, 20), {}), encode_jpeg(smooth_image(24, 20), {.progressive = true}),
      encode_png(random_image(7, 5, 1), true), encode_webp(random_image(9, 9, 1), true),
      encode_webp(smooth_image(40, 30), false)};
  for (const char* name : {"bilevel.png", "palettealpha.png", "webpalpha.webp", "gif.gif"})
    files.push_back(vision_file(std::string("images/") + name));
  for (const std::string& file : files) {
    const Image whole = decode_image(bytes_of(file), DecodeLimits{}).value();
    size_t complete = 0;
    for (size_t size = 0; size<file.size(); size += file.size()> 2000 ? 7 : 1) {
      const std::vector<char> cut(file.begin(),
                                  file.begin() + static_cast<int64_t>(size));  // no room behind it
      const auto image = decode_image(std::as_bytes(std::span(cut)), DecodeLimits{});
      if (!image.ok()) continue;
      EXPECT_EQ(image.value(), whole) << size << " of " << file.size() << " bytes";
      ++complete;
    }
    // Little may be missing: an end marker, or the second frame of the one animation among them.
    EXPECT_LE(complete, file.starts_with("GIF") ? file.size() / 2 + 16 : 16u)
        << "of " << file.size() << " bytes, beginning with " << file.substr(0, 4);
  }
}

TEST(Hostile, GifsWithoutEnd) {
  const std::string head = "GIF89a" + le(4, 2) + le(4, 2) + le(0x80, 1) + le(0, 2) + std::string(6, '\x7f');
  const std::string image = "," + le(0, 4) + le(4, 2) + le(4, 2) + le(0, 1) + le(2, 1);
  std::string extensions = head;
  while (extensions.size() < size_t{1} << 20) extensions += "!\xff\x01x" + std::string(1, '\0');
  EXPECT_NE(error_of(extensions).find("no frame"), std::string::npos) << error_of(extensions);
  std::string blocks = head + "!\xfe";
  while (blocks.size() < size_t{1} << 20) blocks += "\xff" + std::string(255, 'x');
  EXPECT_NE(error_of(blocks), "");
  // Clear codes (100 in 3 bits) that never draw a pixel.
  std::string clears = head + image;
  while (clears.size() < size_t{1} << 20) {
    clears += "\xff";
    for (int i = 0; i < 85; ++i) clears += "\x24\x49\x92";
  }
  EXPECT_NE(error_of(clears).find("ends early"), std::string::npos) << error_of(clears);
}

TEST(Hostile, OfTenThousandFramesOneIsDecoded) {
  const std::string head = "GIF89a" + le(1, 2) + le(1, 2) + le(0x80, 1) + le(0, 2) + std::string(6, '\x7f');
  // One pixel: a clear code, index 0, the end.
  const std::string frame =
      "," + le(0, 4) + le(1, 2) + le(1, 2) + le(0, 1) + le(2, 1) + "\x02\x44\x01" + le(0, 1);
  std::string many = head;
  for (int i = 0; i < 10'000; ++i) many += frame;
  EXPECT_EQ(decode_image(bytes_of(many), {}).value(), (Image{1, 1, {0x7f, 0x7f, 0x7f}}));
}

// Scans take few bytes, and each walks over all of the image.
TEST(Hostile, ManyScansAreRefused) {
  const auto with_scans = [](int width, int height, int more) {
    std::string file = encode_jpeg(smooth_image(width, height), {.progressive = true});
    const size_t last_scan = file.rfind("\xff\xda");
    const std::string scan = file.substr(last_scan, file.size() - 2 - last_scan);
    for (int i = 0; i < more; ++i) file.insert(last_scan, scan);
    return error_of(file);
  };
  EXPECT_NE(with_scans(64, 64, 200).find("more than 100 scans"), std::string::npos);
  EXPECT_EQ(with_scans(64, 64, 60), "");
  EXPECT_NE(with_scans(2560, 2048, 60).find("more than 51 scans"), std::string::npos);
  EXPECT_EQ(with_scans(2560, 2048, 1), "");
}

TEST(Hostile, PolyglotsAreWhatTheyBeginWith) {
  const std::string png = encode_png(random_image(6, 6, 1)), gif = vision_file("images/gif.gif");
  const Image image = random_image(6, 6, 1);
  for (const std::string& tail :
       {gif, std::string("PK\x03\x04 and more"), std::string("<script>alert(1)</script>")})
    EXPECT_EQ(decode_image(bytes_of(png + tail), DecodeLimits{}).value(), image);
  EXPECT_NE(error_of("GIF89a=1;/*" + png + "*/"), "");
  EXPECT_NE(error_of("<script>" + png), "");
  EXPECT_NE(error_of(""), "");
  EXPECT_NE(error_of("BM" + png).find("BMP"), std::string::npos);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// How much more memory a process holds at its peak that decodes the file.
size_t decoding_bytes(const std::string& file) {
  malloc_trim(0);  // what earlier tests left free would be used first
  int pipe_ends[2];
  EXPECT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const size_t before = resident_bytes();
    const bool ok = decode_image(bytes_of(file), DecodeLimits{}).ok();
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const size_t more = static_cast<size_t>(usage.ru_maxrss) * 1024 - before;
    _exit(ok && write(pipe_ends[1], &more, sizeof(more)) == sizeof(more) ? 0 : 1);
  }
  close(pipe_ends[1]);
  int status = 0;
  size_t more = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(read(pipe_ends[0], &more, sizeof(more)), static_cast<ssize_t>(sizeof(more)));
  close(pipe_ends[0]);
  return more;
}

TEST(Hostile, DecodersStayWithinFifteenBytesForEachPixel) {
  if (kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  const Image image = smooth_image(1600, 1200);
  const size_t pixels = size_t{1600} * 1200, limit = 15 * pixels + (size_t{8} << 20);
  for (const std::string& file :
       {encode_jpeg(image, {.luma_across = 1, .luma_down = 1, .progressive = true}), encode_jpeg(image, {}),
        encode_png(image, true), encode_webp(image, true), encode_webp(image, false)}) {
    const size_t bytes = decoding_bytes(file);
    EXPECT_LE(bytes, limit);
    EXPECT_GE(bytes, 2 * pixels) << "the image alone has more: the figure is wrong";
  }
}

}  // namespace
}  // namespace sparrow::test
