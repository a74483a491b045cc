#include "millrace/profiler/measure_peak.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"

namespace millrace {
namespace {

// Of float32, three matrices take 0.75, 3 and 12 MiB: what one core's second level holds, and what
// the third does.
constexpr std::array<int64_t, 3> kSizes = {256, 512, 1024};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Runs work(rank), which does not throw, in a thread each of `ranks`.
void run_busy(int ranks, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&work, rank] {
      at::set_num_threads(1);
      work(rank);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

double median_product_flops_per_s(int ranks, int64_t size, at::ScalarType dtype, double seconds) {
  std::atomic<bool> done{false};
  std::atomic<int> waiting{ranks};
  std::vector<double> speeds;
  std::vector<std::array<at::Tensor, 3>> matrices(static_cast<std::size_t>(ranks));
  for (std::array<at::Tensor, 3>& each : matrices) {
    for (at::Tensor& matrix : each) {
      matrix = at::full({size, size}, 0.5, dtype);
    }
  }
  run_busy(ranks, [&](int rank) {
    auto& [left, right, product] = matrices[static_cast<std::size_t>(rank)];
    at::mm_out(product, left, right);  // the library's buffers are made
    for (--waiting; waiting > 0;) {
      std::this_thread::yield();
    }
    if (rank > 0) {
      while (!done) {
        at::mm_out(product, left, right);
      }
      return;
    }
    const double flops = 2.0 * static_cast<double>(size * size * size);
    const double begin_s = monotonic_s();
    double mark_s = begin_s;
    do {
      at::mm_out(product, left, right);
      const double now_s = monotonic_s();
      speeds.push_back(flops / std::max(now_s - mark_s, 1e-9));
      mark_s = now_s;
    } while (mark_s - begin_s < seconds);
    done = true;
  });
  return median(std::move(speeds));
}

}  // namespace

double measure_gemm_flops_per_s(int ranks, at::ScalarType dtype, double seconds) {
  MILLRACE_CHECK(ranks >= 1);
  double most = 0;
  for (const int64_t size : kSizes) {
    most = std::max(most, median_product_flops_per_s(ranks, size, dtype,
                                                     seconds / static_cast<double>(kSizes.size())));
  }
  return most;
}

double measure_copy_bytes_per_s(int ranks, int64_t array_bytes, double seconds) {
  MILLRACE_CHECK(ranks >= 1 && array_bytes >= 1);
  const int64_t bytes = array_bytes;
  std::atomic<int> waiting{ranks};
  std::vector<double> speeds(static_cast<std::size_t>(ranks));
  // Not written to yet: a page lies near the thread that writes to it first.
  std::vector<std::array<at::Tensor, 2>> arrays(static_cast<std::size_t>(ranks));
  for (std::array<at::Tensor, 2>& each : arrays) {
    each = {at::empty({bytes}, at::kByte), at::empty({bytes}, at::kByte)};
  }
  run_busy(ranks, [&](int rank) {
    auto& [from, to] = arrays[static_cast<std::size_t>(rank)];
    from.fill_(1);
    const auto copy = [from = from, to = to, bytes] {
      std::memcpy(to.data_ptr(), from.data_ptr(), static_cast<std::size_t>(bytes));
    };
    copy();  // all pages are there
    for (--waiting; waiting > 0;) {
      std::this_thread::yield();
    }
    const double begin_s = monotonic_s();
    double spent_s = 0;
    int copies = 0;
    while (spent_s < seconds || copies == 0) {
      copy();
      ++copies;
      spent_s = monotonic_s() - begin_s;
    }
    speeds[static_cast<std::size_t>(rank)] = 2.0 * static_cast<double>(bytes) * copies / spent_s;
  });
  return std::accumulate(speeds.begin(), speeds.end(), 0.0);
}

int64_t array_beyond_caches(int ranks) {
  constexpr int64_t kLeast = int64_t{64} << 20;
  constexpr int64_t kMost = int64_t{128} << 20;
  const int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);  // 0 or less where it is unknown
  return std::clamp(cache / ranks, kLeast, kMost);
}

}  // namespace millrace
