#include "millrace/rule/internal/daso_intervals.h"

#include <algorithm>

namespace millrace {

void DasoSchedule::observe(double loss) {
  if (loss < best_ * (1 - plateau_.threshold)) {
    best_ = loss;
    num_worse_ = 0;
    return;
  }
  ++num_worse_;
  if (num_worse_ > plateau_.patience) {
    num_worse_ = 0;
    shift();
  }
}

void DasoSchedule::shift() {
  const auto at_least_one = [](int64_t value) { return std::max<int64_t>(1, value); };
  if (now_.skip > 1) {
    now_ = {at_least_one(now_.skip / 2), at_least_one(now_.wait - 1),
            at_least_one(now_.local_skip / 2)};
  } else if (now_.skip == 1) {
    const int64_t quarter = at_least_one(plateau_.max_skip / 4);
    now_ = {plateau_.max_skip, quarter, quarter};
  }
}

}  // namespace millrace
