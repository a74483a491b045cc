// What models of token sequences share: they tell every position's next token. Private to `model`.
#pragma once

#include <string>

#include "millrace/model/model.h"

namespace millrace::internal {

// A model without layers that takes and learns sequences of tokens. Data of another kind is
// Error(kInvalidArgument).
Model token_model(const std::string& name, const ModelRequest& request);

// The option `dropout`, in [0, 1).
double dropout_option(Reader& options, double fallback);

// Adds a dropout after layer `from`, unless p is 0. Returns the index of what comes out.
int append_dropout(Model& model, const std::string& name, double p, int from);

}  // namespace millrace::internal
