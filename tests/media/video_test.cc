// SPDX-License-Identifier: Apache-2.0
// Which frames a video gives, when they were, and what comes out of files by ffmpeg, where it is installed.
#include "media/video.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/strf.h"
#include "media/encoders.h"
#include "media/ffmpeg/child.h"
#include "media/ffmpeg/packet_list.h"
#include "media/vision_golden.h"
#include "support/temp_dir.h"

namespace sparrow::test {
namespace {

using Indices = std::vector<int64_t>;

// The machine may be slow; what is limited here is something else.
const VideoLimits kPatient{.time = std::chrono::minutes(20)};

TEST(SampleFrames, FirstThenOneASecondThenTheLast) {
  EXPECT_EQ(sample_frames(120, 29.97, 1, 768), (Indices{0, 30, 60, 90, 119}));
  EXPECT_EQ(sample_frames(12, 2, 1, 768), (Indices{0, 2, 4, 6, 8, 10, 11}));
  EXPECT_EQ(sample_frames(11, 2, 1, 768), (Indices{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(sample_frames(1, 30, 1, 768), (Indices{0}));
  EXPECT_EQ(sample_frames(4, 1, 30, 768), (Indices{0, 1, 2, 3}));  // no more than there are
  EXPECT_EQ(sample_frames(91, 30, 2, 768), (Indices{0, 15, 30, 45, 60, 75, 90}));
}

TEST(SampleFrames, TooManyAreThinnedEvenlyAndTheLastStays) {
  EXPECT_EQ(sample_frames(100, 1, 1, 5), (Indices{0, 25, 50, 75, 99}));
  const Indices indices = sample_frames(1'000'000, 30, 30, 768);
  ASSERT_EQ(indices.size(), 768u);
  EXPECT_EQ(indices.back(), 999'999);
  EXPECT_TRUE(std::ranges::is_sorted(indices));
}

TEST(PatchSeconds, AreThoseOfEverySecondFrame) {
  Video video{.frames = std::vector<Image>(5), .fps = 29.97, .indices = {0, 30, 60, 90, 119}};
  std::vector<std::string> texts;
  for (const double seconds : patch_seconds(video)) texts.push_back(seconds_text(seconds));
  EXPECT_EQ(texts, (std::vector<std::string>{"0.0", "2.0", "4.0"}));
  video.fps = 0;
  EXPECT_TRUE(patch_seconds(video).empty());
}

TEST(FrameRate, CoarseTicksMeanTheRateNearby) {
  EXPECT_EQ(frame_rate(300, 299 * 1001, 1.0 / 30000), 30000.0 / 1001);
  EXPECT_EQ(frame_rate(300, 9977, 1e-3), 30000.0 / 1001);  // Matroska's milliseconds
  EXPECT_EQ(frame_rate(300, 9967, 1e-3), 30);
  EXPECT_EQ(frame_rate(240, 9968, 1e-3), 24000.0 / 1001);
  EXPECT_DOUBLE_EQ(frame_rate(101, 8000, 1e-3), 12.5);
  EXPECT_EQ(frame_rate(1, 0, 1e-3), 1);
}

TEST(PacketList, CountsPacketsAndSurvivesNonsense) {
  const auto list = parse_packet_list(
      "#software: x\n#tb 0: 1/12800\n#dimensions 0: 320x240\n0, -512, 0, 512, 99, 0xabc\n0, 0, 1024, 512, 9, "
      "0x1\n"
      "0, 512, 512, 512, 9, 0x2, F=0x0\n");
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(list->count, 3);
  EXPECT_EQ(list->width, 320);
  EXPECT_EQ(list->height, 240);
  EXPECT_EQ(list->fps, 25);
  EXPECT_FALSE(parse_packet_list("").ok());
  EXPECT_FALSE(parse_packet_list("#tb 0: 0/0\n0, 1, 1\n").ok());
  EXPECT_TRUE(parse_packet_list("#tb 0: 1/0\n#dimensions 0: 99999999999x1\n0, NOPTS, NOPTS").ok());
}

std::vector<std::string> clip_files(const std::string& name, int count) {
  std::vector<std::string> files;
  for (int i = 0; i < count; ++i) files.push_back(vision_file(strf("clips/{}/{:03}.png", name, i)));
  return files;
}

Result<Video> read_list(const std::vector<std::string>& files, const VideoRule& rule = {}) {
  std::vector<std::span<const std::byte>> spans;
  for (const std::string& file : files) spans.push_back(bytes_of(file));
  return video_of_files(spans, rule, DecodeLimits{});
}

TEST(FrameFiles, AreResizedByTheFirstAndRefusedByName) {
  const auto video = read_list(clip_files("walk", 6));
  ASSERT_TRUE(video.ok());
  EXPECT_EQ(video->frames.size(), 6u);
  std::vector<std::string> files = clip_files("walk", 3);
  files.push_back(encode_png(random_image(30, 30, 1)));
  EXPECT_NE(read_list(files).error().message.find("frame 3 has 30 x 30"), std::string::npos);
  files[1] = "nonsense";
  EXPECT_NE(read_list(files).error().message.find("frame 1: "), std::string::npos);
  EXPECT_FALSE(read_list({}).ok());
  EXPECT_FALSE(read_list(clip_files("walk", 6), {.max_frames = 5}).ok());
  EXPECT_NE(read_list(clip_files("walk", 6), {.max_pixels = 112 * 84 * 5}).error().message.find("6 frames"),
            std::string::npos);
}

TEST(VideoFile, WithoutFfmpegTheErrorSaysWhatToInstall) {
  const auto video = video_of_file(bytes_of("\x1a\x45\xdf\xa3 and more"), {}, {.ffmpeg = "no-such-program"});
  ASSERT_FALSE(video.ok());
  EXPECT_NE(video.error().message.find("apt-get install ffmpeg"), std::string::npos) << video.error().message;
  const auto playlist = video_of_file(bytes_of("#EXTM3U\nfile:///etc/passwd\n"), {}, {});
  ASSERT_FALSE(playlist.ok());
  EXPECT_NE(playlist.error().message.find("container"), std::string::npos) << playlist.error().message;
}

class Ffmpeg : public testing::Test {
 protected:
  void SetUp() override {
    if (!find_program("ffmpeg")) GTEST_SKIP() << "ffmpeg is not installed";
  }
  // A video file that ffmpeg itself writes.
  std::string make(const std::string& arguments, const std::string& name) {
    const std::string path = (dir_.path() / name).string();
    const std::string line = strf("ffmpeg -nostdin -loglevel error -y {} '{}' </dev/null", arguments, path);
    EXPECT_EQ(std::system(line.c_str()), 0) << line;
    return read_text(path);
  }
  TempDir dir_;
};

TEST_F(Ffmpeg, FramesOfALosslessFileAreTheGoldens) {
  const std::string frames = (vision_dir() / "clips/walk/%03d.png").string();
  const JsonDocument document = manifest();
  const Json hashes = document.root().at("clips")->at("walk")->at("resized_sha256").value();
  for (const char* name : {"walk.mkv", "walk.mov", "walk.avi"}) {
    SCOPED_TRACE(name);
    const std::string file = make(strf("-framerate 2 -i '{}' -c:v png", frames), name);
    const auto video = video_of_file(bytes_of(file), {.fps = 2}, kPatient);
    ASSERT_TRUE(video.ok()) << video.error().message;
    EXPECT_EQ(video->fps, 2);
    EXPECT_EQ(video->indices, (Indices{0, 1, 2, 3, 4, 5}));
    ASSERT_EQ(video->frames.size(), 6u);
    for (size_t i = 0; i < 6; ++i)
      EXPECT_EQ(sha256(video->frames[i].rgb), hashes.element(i).as_string().value()) << i;
    const auto slower = video_of_file(bytes_of(file), {.fps = 1}, kPatient);
    ASSERT_TRUE(slower.ok());
    EXPECT_EQ(slower->indices, (Indices{0, 2, 4, 5}));
    EXPECT_EQ(slower->frames[1], video->frames[2]);
    EXPECT_EQ(slower->frames[3], video->frames[5]);
  }
}

// ffmpeg has a limit of its own on the terms of an expression.
TEST_F(Ffmpeg, AsManyFramesAsAVideoMayHave) {
  const std::string file =
      make("-f lavfi -i testsrc=size=64x48:rate=25 -frames:v 2000 -c:v mpeg4 -g 2000", "long.mp4");
  const auto all = video_of_file(bytes_of(file), {.fps = 25}, kPatient);
  ASSERT_TRUE(all.ok()) << all.error().message;
  ASSERT_EQ(all->frames.size(), 768u);
  ASSERT_EQ(all->indices.size(), 768u);
  for (const double fps : {0.02, 1.3, 2.0, 5.0, 9.0}) {
    const auto some = video_of_file(bytes_of(file), {.fps = fps}, kPatient);
    ASSERT_TRUE(some.ok()) << some.error().message;
    EXPECT_EQ(some->indices, sample_frames(2000, 25, fps, 768)) << fps;
    EXPECT_EQ(some->frames.size(), some->indices.size()) << fps;
    // The same frame of the file is the same picture, whichever others are taken.
    for (size_t i = 0; i < some->indices.size(); ++i) {
      const auto found = std::ranges::lower_bound(all->indices, some->indices[i]);
      if (found == all->indices.end() || *found != some->indices[i]) continue;
      const auto at = static_cast<size_t>(found - all->indices.begin());
      EXPECT_EQ(some->frames[i], all->frames[at]) << fps << ", frame " << some->indices[i];
    }
  }
}

TEST_F(Ffmpeg, SoundAloneIsNoVideo) {
  const std::string file = make("-f lavfi -i sine=duration=1", "sound.mp4");
  EXPECT_EQ(video_of_file(bytes_of(file), {}, kPatient).error().message,
            "the file has no video stream that can be read");
}

TEST_F(Ffmpeg, LimitsHold) {
  const std::string file =
      make("-f lavfi -i testsrc=size=320x240:rate=30000/1001 -frames:v 100 -c:v mpeg4", "test.mp4");
  const auto video = video_of_file(bytes_of(file), {}, kPatient);
  ASSERT_TRUE(video.ok()) << video.error().message;
  EXPECT_EQ(video->fps, 30000.0 / 1001);
  EXPECT_EQ(video->indices, (Indices{0, 30, 60, 90, 99}));
  const auto refused = [&](auto change) {
    VideoLimits limits = kPatient;
    change(limits);
    const auto result = video_of_file(bytes_of(file), {}, limits);
    return result.ok() ? "" : result.error().message;
  };
  EXPECT_NE(refused([](VideoLimits& l) { l.max_bytes = 100; }).find("100 is the limit"), std::string::npos);
  EXPECT_NE(refused([](VideoLimits& l) { l.max_frame_pixels = 1000; }), "");
  EXPECT_NE(refused([](VideoLimits& l) { l.max_source_frames = 99; }), "");
  EXPECT_NE(refused([](VideoLimits& l) { l.time = {}; }).find("0 ms"), std::string::npos);
  EXPECT_NE(refused([](VideoLimits& l) { l.memory = 1 << 20; }), "");
  const auto large = video_of_file(bytes_of(file), {.max_pixels = 5 * 308 * 252 - 1}, kPatient);
  ASSERT_FALSE(large.ok());
  EXPECT_NE(large.error().message.find("5 frames of"), std::string::npos) << large.error().message;
  EXPECT_NE(video_of_file(bytes_of(file.substr(0, file.size() / 2)), {}, kPatient).error().message, "");
}

// The child's own limits, by programs that try to pass them.
TEST(Child, MayNotOpenSocketsWriteFilesOrStay) {
  const auto run = [](const std::string& script, std::string& output, int ms = 1'000'000) {
    return run_child({"/bin/sh", "-c", script}, bytes_of("input"),
                     {.time = std::chrono::milliseconds(ms), .memory = size_t{1} << 30, .output = 1000},
                     [&](std::span<const std::byte> bytes) -> Status {
                       output.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                       return Ok{};
                     });
  };
  std::string output;
  EXPECT_TRUE(run("cat /proc/self/fd/3; ls /proc/self/fd | wc -l", output).ok());
  EXPECT_EQ(output.substr(0, 5), "input");
  TempDir dir;
  const std::string path = (dir.path() / "written").string();
  EXPECT_FALSE(run(strf("echo text > {}", path), output).ok());
  EXPECT_EQ(read_text(path), "");
  const Status quoted = run("echo '[mov @ 0x55d45101f640] broken @ 0x1' >&2; exit 3", output);
  ASSERT_FALSE(quoted.ok());
  EXPECT_EQ(quoted.error().message, "the video cannot be read: [mov] broken");
  EXPECT_FALSE(run("sleep 600", output, 50).ok());
  EXPECT_FALSE(run("exec >&- 2>&-; sleep 600", output, 50).ok());
  EXPECT_FALSE(run("while :; do echo 0123456789; done", output).ok());
  if (find_program("python3")) {
    const Status socket = run("exec python3 -c 'import socket; socket.socket()'", output);
    ASSERT_FALSE(socket.ok());
    EXPECT_NE(socket.error().message.find("Permission"), std::string::npos) << socket.error().message;
  }
}

TEST_F(Ffmpeg, MemoryIsAskedForBeforeAFrameIsDecoded) {
  const std::string file =
      make("-f lavfi -i testsrc=size=320x240:rate=10 -frames:v 31 -c:v mpeg4", "test.mp4");
  int64_t asked = 0;
  const auto video = video_of_file(bytes_of(file), {}, kPatient, {.reserve = [&](int64_t bytes) -> Status {
                                     asked = bytes;
                                     return Error{Errc::kBusy, "no room"};
                                   }});
  ASSERT_FALSE(video.ok());
  EXPECT_EQ(video.error().code, Errc::kBusy);
  // Four frames, and their patches in floats.
  EXPECT_EQ(asked, int64_t{308} * 252 * 3 * (4 + 4 * 4));
}

TEST(Child, EndsAtOnceWhenItIsStopped) {
  // Both while it is read from, and when it has closed its pipes.
  for (const char* script : {"echo begun; exec sleep 600", "echo begun; exec >&- 2>&-; exec sleep 600"}) {
    std::stop_source stop;
    const Status ended = run_child(
        {"/bin/sh", "-c", script}, bytes_of("input"),
        {.time = std::chrono::hours(1), .memory = size_t{1} << 30, .output = 1000, .stop = stop.get_token()},
        [&](std::span<const std::byte>) -> Status {
          stop.request_stop();
          return Ok{};
        });
    ASSERT_FALSE(ended.ok());
    EXPECT_EQ(ended.error().code, Errc::kStopped);
  }
}

}  // namespace
}  // namespace sparrow::test
