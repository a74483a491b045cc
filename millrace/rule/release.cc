#include "millrace/rule/release.h"

#include <algorithm>
#include <cmath>

#include "millrace/base/error.h"

namespace millrace {

Release::Release(const Config& config)
    : config_(config), members_(static_cast<std::size_t>(config.num_members)) {
  MILLRACE_CHECK(config.low >= 0 && config.range >= 0);
}

std::vector<int> Release::on_push(int member, double now_s) {
  Member& self = members_[static_cast<std::size_t>(member)];
  ++self.pushes;
  self.previous_s = self.latest_s;
  self.latest_s = now_s;
  std::vector<int> released;
  if (goes_on(member)) {
    released.push_back(member);
  } else {
    held_.push_back(member);
  }
  free_held(released);
  return released;
}

std::vector<int> Release::on_goodbye(int member) {
  members_[static_cast<std::size_t>(member)].present = false;
  std::vector<int> released;
  free_held(released);
  return released;
}

bool Release::goes_on(int member) {
  Member& self = members_[static_cast<std::size_t>(member)];
  const int64_t ahead = lead(member);
  if (self.credits > 0 && within_cap(ahead)) {
    --self.credits;
    return true;
  }
  if (ahead <= config_.low) {
    return true;
  }
  if (!is_fastest(member) || self.credits > 0 || !within_cap(ahead)) {
    return false;
  }
  const int64_t further = further_updates(self);
  self.credits = std::max<int64_t>(further - 1, 0);  // this release is the first
  return further > 0;
}

void Release::free_held(std::vector<int>& released) {
  const auto is_free = [this](int member) { return lead(member) <= config_.low; };
  std::copy_if(held_.begin(), held_.end(), std::back_inserter(released), is_free);
  std::erase_if(held_, is_free);
}

int64_t Release::lead(int member) const {
  const int last = slowest();
  const int64_t least = last < 0 ? 0 : members_[static_cast<std::size_t>(last)].pushes;
  return members_[static_cast<std::size_t>(member)].pushes - least;
}

bool Release::within_cap(int64_t lead) const {
  return !config_.cap || lead <= config_.low + config_.range;
}

bool Release::is_fastest(int member) const {
  return std::none_of(members_.begin(), members_.end(), [&](const Member& other) {
    return other.present && other.pushes > members_[static_cast<std::size_t>(member)].pushes;
  });
}

int Release::slowest() const {
  int found = -1;
  for (int member = 0; member < config_.num_members; ++member) {
    const Member& other = members_[static_cast<std::size_t>(member)];
    if (other.present &&
        (found < 0 || other.pushes < members_[static_cast<std::size_t>(found)].pushes)) {
      found = member;
    }
  }
  return found;
}

int64_t Release::further_updates(const Member& fast) const {
  const Member& slow = members_[static_cast<std::size_t>(slowest())];
  if (fast.pushes < 2 || slow.pushes < 2) {
    return 0;
  }
  const double fast_interval_s = fast.latest_s - fast.previous_s;
  const double slow_interval_s = slow.latest_s - slow.previous_s;
  int64_t best = 0;
  double least_s = -1;
  for (int64_t r = 0; r <= config_.range; ++r) {
    const double fast_s = fast.latest_s + static_cast<double>(r) * fast_interval_s;
    for (int64_t k = 0; k <= config_.range; ++k) {
      const double slow_s = slow.latest_s + static_cast<double>(k + 1) * slow_interval_s;
      const double apart_s = std::abs(fast_s - slow_s);
      if (least_s < 0 || apart_s <= least_s) {
        least_s = apart_s;
        best = r;
      }
    }
  }
  return best;
}

}  // namespace millrace
