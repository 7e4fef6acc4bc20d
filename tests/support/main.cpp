// main() of the test programs. What a test finds must not depend on the cores of the machine, on
// what ran before it in the same program, or on chance: every test begins with one thread, and
// random programs are drawn from one seed.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace {

// A test that needs more threads sets them itself; the next test has one again.
class OneThread : public ::testing::EmptyTestEventListener {
 public:
  void OnTestSuiteStart(const ::testing::TestSuite&) override { at::set_num_threads(1); }
  void OnTestStart(const ::testing::TestInfo&) override { at::set_num_threads(1); }
};

}  // namespace

int main(int argc, char** argv) {
  // Programs that tests start take their threads from here.
  setenv("OMP_NUM_THREADS", "1", /*overwrite=*/1);
  // RapidCheck draws its seed from the machine if none is given; `scripts/test --repeat` gives one
  // for each round.
  setenv("RC_PARAMS", "seed=1", /*overwrite=*/0);
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::UnitTest::GetInstance()->listeners().Append(new OneThread);
  return RUN_ALL_TESTS();
}
