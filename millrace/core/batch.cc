// The arithmetic of a batch: batch = microbatch_size x microbatches x replicas (run_config.h).
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/core/run_config.h"

namespace millrace {
namespace {

// Products of three user's numbers may pass 64 bits; any such product is too large for a batch.
int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<int64_t>::max() : result;
}

void refuse(const std::string& message, std::vector<std::string> ways_out) {
  std::vector<std::string> different;
  for (std::string& way : ways_out) {
    if (std::find(different.begin(), different.end(), way) == different.end()) {
      different.push_back(std::move(way));
    }
  }
  throw Error(ErrorCode::kInvalidArgument, message + "; use " + join(different, ", or "));
}

void check_positive(const char* name, int64_t value) {
  if (value < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("expected {} of 1 or more, found {} (batch = microbatch_size x "
                            "microbatches x replicas)",
                            name, value));
  }
}

// A set microbatch_size that does not make the batch: the nearest values that do.
void refuse_size(int64_t batch, int64_t size, int64_t microbatches, int64_t replicas) {
  const int64_t pass = product(size, replicas);
  const int64_t parts = product(microbatches, replicas);
  const int64_t found = product(pass, microbatches);
  std::vector<std::string> ways;
  if (batch % pass == 0) {
    ways.push_back(fmt::format("microbatches = {}", batch / pass));
  }
  if (batch % parts == 0) {
    ways.push_back(fmt::format("microbatch_size = {}", batch / parts));
  }
  if (found < std::numeric_limits<int64_t>::max()) {
    ways.push_back(fmt::format("batch = {}", found));
  }
  if (batch % pass != 0 && pass < batch) {
    const int64_t count = batch / pass;
    for (const int64_t near : {count, count + 1}) {
      if (near != microbatches) {
        ways.push_back(fmt::format("batch = {} with microbatches = {}", product(pass, near), near));
      }
    }
  }
  if (ways.empty()) {
    ways.emplace_back("smaller numbers");
  }
  refuse(fmt::format(
             "batch = microbatch_size x microbatches x replicas must hold, but batch is {} and "
             "{} x {} x {} = {}",
             batch, size, microbatches, replicas, found),
         std::move(ways));
}

}  // namespace

void check_batch(int64_t batch, std::optional<int64_t> microbatch_size, int64_t microbatches,
                 int64_t replicas) {
  check_positive("batch", batch);
  check_positive("microbatches", microbatches);
  check_positive("replicas", replicas);
  if (microbatch_size) {
    check_positive("microbatch_size", *microbatch_size);
    if (product(product(*microbatch_size, microbatches), replicas) != batch) {
      refuse_size(batch, *microbatch_size, microbatches, replicas);
    }
    return;
  }
  const int64_t parts = product(microbatches, replicas);
  if (parts > batch) {
    std::vector<std::string> ways;
    if (parts < std::numeric_limits<int64_t>::max()) {
      ways.push_back(fmt::format("batch = {}", parts));
    }
    if (batch / replicas >= 1) {
      ways.push_back(fmt::format("microbatches = {}", batch / replicas));
    }
    if (batch / microbatches >= 1) {
      ways.push_back(fmt::format("replicas = {}", batch / microbatches));
    }
    if (ways.empty()) {
      ways.emplace_back("smaller numbers");
    }
    refuse(
        fmt::format("a batch of {} cannot be cut into microbatches x replicas = {} x {} = {} parts "
                    "of a sample or more",
                    batch, microbatches, replicas, parts),
        std::move(ways));
  }
}

std::string batch_equation(int64_t batch, int64_t microbatches, int64_t replicas) {
  const int64_t parts = product(microbatches, replicas);
  MILLRACE_CHECK(parts >= 1, "a batch has at least one part");
  if (batch % parts == 0) {
    return fmt::format("batch {} = microbatch_size {} x microbatches {} x replicas {}", batch,
                       batch / parts, microbatches, replicas);
  }
  return fmt::format("batch {} = microbatches {} x replicas {} of {} or {} samples", batch,
                     microbatches, replicas, batch / parts, batch / parts + 1);
}

std::vector<int64_t> split_evenly(int64_t total, int64_t parts) {
  MILLRACE_CHECK(total >= 0 && parts >= 1, "split_evenly needs a part and no negative total");
  std::vector<int64_t> sizes(static_cast<std::size_t>(parts), total / parts);
  for (int64_t i = 0; i < total % parts; ++i) {
    ++sizes[static_cast<std::size_t>(i)];
  }
  return sizes;
}

}  // namespace millrace
