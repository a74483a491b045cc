#include "millrace/model/internal/tokens.h"

#include <fmt/format.h>

#include "millrace/model/layers.h"

namespace millrace::internal {

Model token_model(const std::string& name, const ModelRequest& request) {
  if (request.input.dtype != at::kLong || request.input.sample_shape.size() != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the model \"{}\" expects sequences of tokens, int64 [length], found "
                            "{}; the data \"text\" makes such",
                            name, to_string(request.input)))
        .at_key("data");
  }
  Model model;
  model.name = name;
  model.input = request.input;
  model.target = request.input;  // each position's next token
  model.loss = cross_entropy();
  return model;
}

double dropout_option(Reader& options, double fallback) {
  const double p = options.quantity("dropout", fallback);
  if (p >= 1) {
    throw options.error("dropout", fmt::format("expected at least 0 and below 1, found {}", p));
  }
  return p;
}

int append_dropout(Model& model, const std::string& name, double p, int from) {
  return p == 0 ? from : model.append(dropout(name, p), {from});
}

}  // namespace millrace::internal
