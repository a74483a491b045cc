#include "millrace/rule/internal/chunks.h"

#include <algorithm>
#include <cmath>

#include "millrace/rule/arithmetic.h"
#include "millrace/rule/internal/choose.h"

namespace millrace::internal {
namespace {

// `other`, of the dtype that `values` is a span of, from element `at` on.
template <class Span>
auto* beside(Span /*values*/, const Vector& other, int64_t at) {
  return static_cast<typename Span::element_type*>(other.data) + at;
}

}  // namespace

Range Chunks::range(int64_t index) const {
  return {index * chunk, std::min((index + 1) * chunk, num_elements)};
}

double share_of_update(double density, int64_t warmup, int64_t ramp, int64_t update) {
  if (update < warmup) {
    return 1;
  }
  if (update >= warmup + ramp) {
    return density;
  }
  const auto down = static_cast<double>(update - warmup + 1);
  return 1 - (1 - density) * down / static_cast<double>(ramp + 1);
}

int64_t num_chunks_sent(double share, int64_t count) {
  const double exact = share * static_cast<double>(count);
  return std::min(count, static_cast<int64_t>(std::ceil(exact * (1 - 1e-12))));
}

std::vector<uint32_t> largest_chunks(const Vector& norms, int64_t num) {
  if (norms.data == nullptr) {
    return first_indices(num);
  }
  std::vector<double> scores;
  visit(norms, [&](auto values) { scores.assign(values.begin(), values.end()); });
  return highest(scores, num);
}

void chunk_norms(const Chunks& chunks, const Vector& values, Vector& norms) {
  visit(values, [&](auto all) {
    auto* norm = beside(all, norms, 0);
    for (int64_t c = 0; c < chunks.count(); ++c) {
      const Range range = chunks.range(c);
      double total = 0;
      for (int64_t i = range.begin; i < range.end; ++i) {
        total += std::abs(static_cast<double>(all[static_cast<std::size_t>(i)]));
      }
      norm[c] = static_cast<typename decltype(all)::element_type>(total);
    }
  });
}

void correct_momentum(const MomentumStep& step, Range range, Vector& velocity, Vector& residual,
                      Vector& gradient, const Vector& weights) {
  visit(velocity, [&](auto all) {
    using T = typename decltype(all)::element_type;
    T* u = beside(all, velocity, 0);
    T* r = beside(all, residual, 0);
    T* g = beside(all, gradient, 0);
    const T* w = beside(all, weights, 0);
    const T momentum = static_cast<T>(step.momentum);
    const T decay = static_cast<T>(step.decay);
    const T lr = static_cast<T>(step.lr);
    const T scale = static_cast<T>(step.gradient_scale);
    for (int64_t i = range.begin; i < range.end; ++i) {
      u[i] = momentum * u[i] + (scale * g[i] + decay * w[i]);
      r[i] += lr * u[i];
      g[i] = 0;
    }
  });
}

void move_out(Vector& from, Range range, Vector& to, int64_t at) {
  visit(from, [&](auto all) {
    auto* source = beside(all, from, range.begin);
    std::copy_n(source, range.size(), beside(all, to, at));
    std::fill_n(source, range.size(), 0);
  });
}

void subtract_quotient(Vector& to, Range range, const Vector& from, int64_t at, double divisor) {
  visit(to, [&](auto all) {
    using T = typename decltype(all)::element_type;
    T* w = beside(all, to, range.begin);
    const T* a = beside(all, from, at);
    const T d = static_cast<T>(divisor);
    for (int64_t i = 0; i < range.size(); ++i) {
      w[i] -= a[i] / d;
    }
  });
}

}  // namespace millrace::internal
