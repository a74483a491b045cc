// Ranks as threads: runs one function a rank and collects what each threw.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/error.h"

namespace millrace {

// What each rank threw, in rank order; nothing for one that returned. Other exceptions become
// kInternal.
inline std::vector<std::optional<Error>> run_ranks(int num_ranks,
                                                   const std::function<void(int)>& body) {
  std::vector<std::optional<Error>> errors(static_cast<std::size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error;
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = Error(ErrorCode::kInternal, error.what());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

// "" when nobody threw, else everything that was thrown: for EXPECT_EQ(thrown(errors), "").
inline std::string thrown(const std::vector<std::optional<Error>>& errors) {
  std::string text;
  for (const std::optional<Error>& error : errors) {
    if (error.has_value()) {
      text += std::string(error->what()) + "\n";
    }
  }
  return text;
}

}  // namespace millrace
