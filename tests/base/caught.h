// The Error that a call throws, for tests that look at its parts.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "millrace/base/error.h"

namespace millrace {

template <typename Call>
Error caught(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "expected an Error, nothing was thrown";
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

}  // namespace millrace
