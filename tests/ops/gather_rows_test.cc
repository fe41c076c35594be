// gather_rows: copies of rows, of every dtype, repeated and out of order.
#include "tests/ops/op_test_support.h"

namespace tensorfold::test {
namespace {

class GatherRowsOnEveryIsa : public EveryIsa {};

TEST_P(GatherRowsOnEveryIsa, CopiesTheNamedRows) {
  Random random(1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t n : {1, 5, 64, 1000, 5000}) {
      Array x(dtype, 9, n, {3, 1});
      x.fill(random);
      for (const std::vector<int32_t>& rows :
           {std::vector<int32_t>{}, {8}, {0, 0, 3}, {7, 2, 5, 1, 8, 0, 4, 4}}) {
        Array expected(dtype, static_cast<int64_t>(rows.size()), n);
        for (size_t i = 0; i < rows.size(); ++i) {
          for (int64_t j = 0; j < n; ++j) expected.set(static_cast<int64_t>(i), j, x.get(rows[i], j));
        }
        Array by_reference(dtype, static_cast<int64_t>(rows.size()), n, {1, 2});
        reference().gather_rows(by_reference.view(), x.view(), rows);
        expect_same(by_reference, expected, "reference");
        for (auto& ops : backends()) {
          Array out(dtype, static_cast<int64_t>(rows.size()), n, {1, 2});
          ops->gather_rows(out.view(), x.view(), rows);
          expect_same(out, expected, "cpu");
        }
      }
    }
  }
}

TEST_P(GatherRowsOnEveryIsa, RoundsToBf16WhereTheOutputIs) {
  Random random(2);
  const std::vector<int32_t> rows = {4, 0, 0, 8};
  for (const int64_t n : {1, 7, 64, 5000}) {
    Array x(DType::kF32, 9, n, {3, 1}), expected(DType::kBF16, 4, n);
    sprinkle_specials(x.fill(random), random);
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < n; ++j) expected.set(i, j, x.get(rows[i], j));
    }
    Array by_reference(DType::kBF16, 4, n, {1, 2});
    reference().gather_rows(by_reference.view(), x.view(), rows);
    expect_same(by_reference, expected, "reference");
    for (auto& ops : backends()) {
      Array out(DType::kBF16, 4, n, {1, 2});
      ops->gather_rows(out.view(), x.view(), rows);
      expect_same(out, expected, "cpu");
    }
  }
}

TF_INSTANTIATE_FOR_EVERY_ISA(GatherRowsOnEveryIsa);

}  // namespace
}  // namespace tensorfold::test
