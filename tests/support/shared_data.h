// Tests of published files, which lie beside the tree (kSharedData) where they are at all.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/test_paths.h"

/// Ends a test, or a fixture's SetUp(), as skipped where there are no published files.
#define TF_SKIP_WITHOUT_SHARED_DATA()                      \
  if (!std::filesystem::exists(::tensorfold::kSharedData)) \
  GTEST_SKIP() << ::tensorfold::kSharedData << " is not there"
