// SPDX-License-Identifier: Apache-2.0
// Frames of a video file by the ffmpeg program (5.1 or newer), in two runs: one lists the packets and decodes
// nothing, one decodes the frames that the sampling rule then names. The container is told to ffmpeg: what it
// finds out by itself may be a playlist, which opens other files.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/strf.h"
#include "media/ffmpeg/child.h"
#include "media/ffmpeg/packet_list.h"
#include "media/format/byte_view.h"
#include "media/frame_list.h"

namespace sparrow {
namespace {

constexpr size_t kPacketLine = 128;  // bytes of a line about a packet, at most

// ffmpeg's name for the container, by the file's first bytes; nullptr: none that we know.
const char* container_of(ByteView file) {
  if (file.is(0, "\x1a\x45\xdf\xa3")) return "matroska";
  for (const char* box : {"ftyp", "moov", "mdat", "free", "skip", "wide"})
    if (file.is(4, box)) return "mov";
  if (file.is(0, "RIFF") && file.is(8, "AVI ")) return "avi";
  if (file.is(0, "FLV\x01")) return "flv";
  if (file.is(0, "OggS")) return "ogg";
  if (file.is(0, "GIF8")) return "gif";
  if (file.is(0, "\x30\x26\xb2\x75")) return "asf";
  if (file.u8(0) == 0x47 && file.u8(188) == 0x47) return "mpegts";
  using std::string_view_literals::operator""sv;
  if (file.is(0, "\0\0\x01\xba"sv)) return "mpeg";
  return nullptr;
}

std::vector<std::string> command(const std::string& program, const char* container,
                                 const VideoLimits& limits) {
  return {program,
          "-nostdin",
          "-hide_banner",
          "-loglevel",
          "error",
          "-filter_threads",
          "1",
          "-threads",
          "1",
          "-max_pixels",
          std::to_string(limits.max_frame_pixels),
          "-protocol_whitelist",
          "file",
          "-f",
          container,
          "-i",
          strf("file:{}", kChildInput),
          "-map",
          "0:v:0"};
}

// PPM images one after another: a header in words, then the pixels.
class PpmReader {
 public:
  PpmReader(FrameList& frames, int64_t max_pixels) : frames_(frames), max_pixels_(max_pixels) {}

  Status take(std::span<const std::byte> bytes) {
    held_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    while (true) {
      if (frame_.width == 0 && !SPARROW_TRY(read_head())) return Ok{};
      const size_t size = size_t{3} * frame_.width * frame_.height;
      if (held_.size() < size) return Ok{};
      frame_.rgb.resize(size);
      std::memcpy(frame_.rgb.data(), held_.data(), size);
      held_.erase(0, size);
      SPARROW_TRY(frames_.add(frame_));
      frame_.width = 0;
    }
  }

 private:
  // "P6\n320 240\n255\n". False: it has not come whole yet.
  Result<bool> read_head() {
    constexpr size_t kMaxHead = 40;
    const std::string_view text = std::string_view(held_).substr(0, kMaxHead);
    size_t end = 0;
    for (int line = 0; line < 3; ++line) {
      end = text.find('\n', end);
      if (end++ == text.npos) {
        if (held_.size() >= kMaxHead) return Error{Errc::kCorrupt, "ffmpeg's output is not a frame"};
        return false;
      }
    }
    int width = 0, height = 0;
    const char *last = text.data() + end, *at = text.data() + 3;
    at = std::from_chars(at, last, width).ptr;
    at = at < last ? std::from_chars(at + 1, last, height).ptr : at;
    if (!text.starts_with("P6\n") || width <= 0 || height <= 0 || int64_t{width} * height > max_pixels_)
      return Error{Errc::kCorrupt, strf("a frame of the video has {} x {} pixels; {} in all is the limit",
                                        width, height, max_pixels_)};
    frame_.width = width, frame_.height = height;
    held_.erase(0, end);
    return true;
  }

  FrameList& frames_;
  int64_t max_pixels_;
  std::string held_;
  Image frame_;
};

Result<PacketList> list_packets(std::vector<std::string> arguments, std::span<const std::byte> file,
                                const VideoLimits& limits, const std::stop_token& stop) {
  for (const char* argument : {"-c", "copy", "-f", "framecrc", "pipe:1"}) arguments.push_back(argument);
  std::string text;
  const ChildLimits child{.time = limits.time,
                          .memory = limits.memory,
                          .output = static_cast<size_t>(limits.max_source_frames + 64) * kPacketLine,
                          .stop = stop};
  SPARROW_TRY(run_child(arguments, file, child, [&](std::span<const std::byte> bytes) -> Status {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return Ok{};
  }));
  const PacketList packets = SPARROW_TRY(parse_packet_list(text));
  if (packets.count > limits.max_source_frames)
    return Error{Errc::kInvalidArgument,
                 strf("the video has {} frames; {} is the limit", packets.count, limits.max_source_frames)};
  if (int64_t{packets.width} * packets.height > limits.max_frame_pixels)
    return Error{Errc::kInvalidArgument, strf("the video has {} x {} pixels; {} in all is the limit",
                                              packets.width, packets.height, limits.max_frame_pixels)};
  return packets;
}

// Frames as RGB, and their patches as floats, which come in pairs of frames.
int64_t memory_of(ImageSize size, int64_t frames) {
  return size.pixels() * 3 * (frames + (frames + 1) / 2 * 2 * static_cast<int64_t>(sizeof(float)));
}

// Whether n is one of these numbers, in ffmpeg's words: halved again and again, since it takes no more than a
// hundred terms in a row, and so that a frame costs ten comparisons.
std::string is_among(std::span<const int64_t> numbers) {
  if (numbers.size() == 1) return strf("eq(n,{})", numbers[0]);
  const size_t half = numbers.size() / 2;
  return strf("if(lt(n,{}),{},{})", numbers[half], is_among(numbers.first(half)),
              is_among(numbers.subspan(half)));
}

// Decodes the frames with these numbers, which ascend.
Status decode_frames(std::vector<std::string> arguments, std::span<const std::byte> file,
                     const VideoLimits& limits, const std::stop_token& stop,
                     const std::vector<int64_t>& indices, FrameList& frames) {
  for (const std::string& argument :
       {std::string("-vf"), strf("select='{}'", is_among(indices)), std::string("-fps_mode"),
        std::string("passthrough"), std::string("-frames:v"), std::to_string(indices.size()),
        std::string("-pix_fmt"), std::string("rgb24"), std::string("-c:v"), std::string("ppm"),
        std::string("-f"), std::string("image2pipe"), std::string("pipe:1")})
    arguments.push_back(argument);
  PpmReader reader(frames, limits.max_frame_pixels);
  const ChildLimits child{.time = limits.time,
                          .memory = limits.memory,
                          .output = indices.size() * (static_cast<size_t>(limits.max_frame_pixels) * 3 + 64),
                          .stop = stop};
  return run_child(arguments, file, child,
                   [&](std::span<const std::byte> bytes) { return reader.take(bytes); });
}

}  // namespace

Result<Video> video_of_file(std::span<const std::byte> file, const VideoRule& rule, const VideoLimits& limits,
                            const VideoCaller& caller) {
  if (file.size() > limits.max_bytes)
    return Error{Errc::kInvalidArgument,
                 strf("the video has {} bytes; {} is the limit", file.size(), limits.max_bytes)};
  const char* container = container_of(ByteView(file));
  if (container == nullptr)
    return Error{Errc::kUnsupported,
                 "the video's container is unknown; MP4, MOV, WebM, Matroska, AVI, FLV, Ogg, ASF, MPEG and "
                 "GIF can be read"};
  const auto program = find_program(limits.ffmpeg);
  if (!program)
    return Error{Errc::kUnsupported,
                 strf("video files need the program {} (5.1 or newer) on the server, which is not "
                      "installed there (Debian: apt-get install ffmpeg); a list of frames works without it",
                      limits.ffmpeg)};
  const std::vector<std::string> arguments = command(*program, container, limits);
  const PacketList packets = SPARROW_TRY(list_packets(arguments, file, limits, caller.stop));
  const std::vector<int64_t> indices = sample_frames(packets.count, packets.fps, rule.fps, rule.max_frames);
  // Sides may be swapped later, where the video says that it is turned: the area is the same.
  const ImageSize size = SPARROW_TRY(smart_resize(packets.height, packets.width, rule.frame));
  const auto count = static_cast<int64_t>(indices.size());
  SPARROW_TRY(FrameList::check(size, count, rule));
  if (caller.reserve) SPARROW_TRY(caller.reserve(memory_of(size, count)));
  FrameList frames(rule);
  SPARROW_TRY(decode_frames(arguments, file, limits, caller.stop, indices, frames));
  if (frames.size() == 0) return Error{Errc::kCorrupt, "no frame of the video can be decoded"};
  Video video = std::move(frames).take();
  video.fps = packets.fps;
  // Packets at the end may give no frame.
  video.indices.assign(indices.begin(), indices.begin() + static_cast<int64_t>(video.frames.size()));
  return video;
}

}  // namespace sparrow
