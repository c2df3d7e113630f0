// SPDX-License-Identifier: Apache-2.0
#include "base/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace sparrow {
namespace {

using ::testing::HasSubstr;

TEST(ProgressBar, PrintsOnePlainLineWhenStderrIsNotATerminal) {
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar("loading", ProgressBar::Unit::kBytes);
    const ProgressFn report = bar.callback();
    for (uint64_t done = 0; done <= 2'000'000'000; done += 500'000'000) report(done, 2'000'000'000);
    bar.finish();
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_THAT(text, HasSubstr("loading: 2.00 GB in"));
}

TEST(ProgressBar, AMomentOrASingleItemHasNoRate) {
  EXPECT_TRUE(has_rate(2, 0.1));
  EXPECT_FALSE(has_rate(1, 10));
  EXPECT_FALSE(has_rate(1e9, 0.05));
  EXPECT_FALSE(has_rate(0, 0));
}

TEST(ProgressBar, SaysNothingAboutAJobThatFailed) {
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar("loading", ProgressBar::Unit::kBytes);
    bar.update(1, 2);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace sparrow
