// SPDX-License-Identifier: Apache-2.0
#include "media/source/local_media.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/temp_dir.h"

namespace sparrow {
namespace {

namespace fs = std::filesystem;

// ROOT/media is allowed, ROOT/secret is not.
class LocalMediaTest : public testing::Test {
 protected:
  LocalMediaTest() : root_(fs::canonical(dir_.path())) {
    fs::create_directories(root_ / "media/sub");
    write("media/a.png", "picture");
    write("media/sub/b c.png", "another");
    write("secret", "secret");
    write("media2", "neighbour");
  }
  void write(const std::string& name, const std::string& text) { std::ofstream(root_ / name) << text; }
  std::string path(const std::string& name) const { return (root_ / name).string(); }
  LocalMedia media() const {
    auto media = LocalMedia::open(path("media"));
    EXPECT_TRUE(media.ok());
    return std::move(media).value();
  }
  static std::string text_of(const Result<MediaBytes>& bytes) {
    if (!bytes.ok()) return "error: " + bytes.error().message;
    return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
  }
  std::string read(const std::string& name, size_t max_bytes = 1000) const {
    return text_of(media().read(path(name), max_bytes));
  }
  std::string refusal(const std::string& name) const {
    return "error: file " + path(name) + " is not a file below the allowed path";
  }

  test::TempDir dir_;
  fs::path root_;
};

TEST_F(LocalMediaTest, ReadsFilesBelowTheFolder) {
  EXPECT_EQ(read("media/a.png"), "picture");
  EXPECT_EQ(read("media//a.png"), "picture");
  EXPECT_EQ(read("media/sub/b c.png"), "another");
  EXPECT_EQ(read("media/a.png", 7), "picture");
  EXPECT_EQ(read("media/a.png", 6), "error: a media file of 7 bytes; at most 6 are allowed");
  const auto with_slash = LocalMedia::open(path("media") + "/");
  ASSERT_TRUE(with_slash.ok());
  EXPECT_EQ(text_of(with_slash->read(path("media/a.png"), 1000)), "picture");
}

TEST_F(LocalMediaTest, RefusesAllElseInTheSameWords) {
  fs::create_directory_symlink(root_, root_ / "media/up");
  fs::create_symlink("../secret", root_ / "media/link");
  fs::create_symlink(root_ / "secret", root_ / "media/far");
  fs::create_symlink("/proc/self/environ", root_ / "media/proc");
  for (const char* name :
       {"secret", "media", "media/", "media2", "media/none", "media/../secret", "media/sub/../../secret",
        "media/sub", "media/link", "media/far", "media/up/secret", "media/proc"})
    EXPECT_EQ(read(name), refusal(name));
  EXPECT_EQ(text_of(media().read("media/a.png", 10)),
            "error: file media/a.png is not a file below the allowed path");
  EXPECT_THAT(text_of(media().read(path("media/a.png") + std::string("\0x", 2), 10)),
              testing::HasSubstr("error: "));
}

TEST_F(LocalMediaTest, OpensNoPipesSocketsAndDevices) {
  ASSERT_EQ(::mkfifo(path("media/pipe").c_str(), 0600), 0);
  EXPECT_EQ(read("media/pipe"), refusal("media/pipe"));  // and does not wait for a writer
  if (::mknod(path("media/null").c_str(), S_IFCHR | 0600, 0x103) != 0) return;  // not root
  EXPECT_EQ(read("media/null"), refusal("media/null"));
}

TEST_F(LocalMediaTest, FollowsLinksThatStayBelowIt) {
  fs::create_symlink("sub/b c.png", root_ / "media/inside");
  const std::string text = read("media/inside");
  EXPECT_TRUE(text == "another" || text == refusal("media/inside")) << text;  // a kernel without openat2
}

// Somebody exchanges a folder for a link to another one, over and over.
TEST_F(LocalMediaTest, NeverLeavesWhileFoldersAreExchanged) {
  fs::create_directories(root_ / "outside");
  write("outside/x", "secret");
  fs::create_directories(root_ / "media/real");
  write("media/real/x", "picture");
  fs::create_directory_symlink(root_ / "outside", root_ / "media/evil");
  std::atomic<bool> stop{false};
  std::thread mover([&] {
    const auto exchange = [&](const char* a, const char* b) {
      ::renameat2(AT_FDCWD, path(a).c_str(), AT_FDCWD, path(b).c_str(), RENAME_EXCHANGE);
    };
    while (!stop) exchange("media/real", "media/evil");
  });
  int good = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = read("media/real/x");
    EXPECT_NE(text, "secret");
    good += text == "picture";
  }
  stop = true;
  mover.join();
  RecordProperty("good", good);
}

TEST(LocalMedia, NeedsAFolderThatIsThere) {
  for (const char* folder : {"", "relative", "/no/such/folder", "/etc/passwd"}) {
    const auto media = LocalMedia::open(folder);
    ASSERT_FALSE(media.ok()) << folder;
    EXPECT_EQ(media.error().field, "allowed-local-media-path");
  }
}

TEST(FileUrl, IsAnAbsolutePath) {
  const auto path = [](std::string_view url) {
    const auto path = path_of_file_url(url);
    return path.ok() ? path.value() : "error: " + path.error().message;
  };
  EXPECT_EQ(path("file:///a/b.png"), "/a/b.png");
  EXPECT_EQ(path("FILE://localhost/a%20b%2fc"), "/a b/c");
  for (const char* url : {"", "file:", "file:/a", "file://", "file://a", "file://host/a",
                          "file://localhostx/a", "file://127.0.0.1/a", "file:///a?b", "file:///a#b",
                          "file:///a%", "file:///a%2", "file:///a%zz", "file:///a%00b", "http://x/"})
    EXPECT_THAT(path(url), testing::HasSubstr("error: ")) << url;
}

}  // namespace
}  // namespace sparrow
