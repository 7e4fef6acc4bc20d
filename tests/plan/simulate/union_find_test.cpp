// Classes and their sums against lists that do the same slowly, and that slots come back.
#include "plan/simulate/union_find.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <vector>

namespace reprise::plan {
namespace {

TEST(CostClasses, SumsTheCostsOfWhatWasMerged) {
  CostClasses classes;
  const auto a = classes.add(1), b = classes.add(2), c = classes.add(4);
  classes.merge(a, b);
  EXPECT_EQ(classes.cost(a), 3);
  EXPECT_EQ(classes.cost(c), 4);
  EXPECT_EQ(classes.find(a), classes.find(b));
  EXPECT_NE(classes.find(a), classes.find(c));
  classes.merge(b, c);
  classes.merge(a, c);
  EXPECT_EQ(classes.cost(b), 7);
}

TEST(CostClasses, KeepsTheRestTogetherWhenOneLeaves) {
  CostClasses classes;
  const auto a = classes.add(1), b = classes.add(2), c = classes.add(4);
  classes.merge(a, b);
  classes.merge(b, c);
  classes.remove(b, 2);
  EXPECT_EQ(classes.cost(a), 5);
  EXPECT_EQ(classes.find(a), classes.find(c));
}

TEST(CostClasses, UsesNoMoreSlotsThanAChainThatComesAndGoesNeeds) {
  CostClasses classes;
  std::vector<CostClasses::Node> window;
  for (int i = 0; i < 100'000; ++i) {
    window.push_back(classes.add(1));
    if (window.size() > 1) classes.merge(window[window.size() - 2], window.back());
    if (window.size() == 10) {
      for (const auto node : window) classes.remove(node, 1);
      window.clear();
      EXPECT_EQ(classes.size(), 0U);
    }
  }
}

TEST(CostClasses, AgreesWithListsOnAnyProgram) {
  EXPECT_TRUE(rc::check([] {
    struct Member {
      CostClasses::Node node;
      int group;
      int cost;
    };
    CostClasses classes;
    std::vector<Member> members;
    std::map<int, int> sums;  // of groups, those that left subtracted
    const int steps = *rc::gen::inRange(0, 200);
    for (int i = 0; i < steps; ++i) {
      const int what = *rc::gen::inRange(0, 4);
      const auto any = [&] { return *rc::gen::inRange<std::size_t>(0, members.size()); };
      if (what == 0 || members.empty()) {
        const int cost = *rc::gen::inRange(0, 100);
        members.push_back({classes.add(cost), i, cost});
        sums[i] = cost;
      } else if (what == 1) {
        const std::size_t gone = any();
        classes.remove(members[gone].node, members[gone].cost);
        sums[members[gone].group] -= members[gone].cost;
        members.erase(members.begin() + static_cast<std::ptrdiff_t>(gone));
      } else {
        const std::size_t a = any(), b = any();
        classes.merge(members[a].node, members[b].node);
        const int from = members[b].group, to = members[a].group;
        if (from != to) sums[to] += sums[from];
        for (Member& each : members) {
          if (each.group == from) each.group = to;
        }
      }
      for (const Member& x : members) {
        RC_ASSERT(classes.cost(x.node) == sums[x.group]);
        for (const Member& y : members) {
          RC_ASSERT((classes.find(x.node) == classes.find(y.node)) == (x.group == y.group));
        }
      }
    }
    while (!members.empty()) {
      classes.remove(members.back().node, members.back().cost);
      members.pop_back();
    }
    RC_ASSERT(classes.size() == 0U);
  }));
}

}  // namespace
}  // namespace reprise::plan
