// A language model of LSTM layers after Zaremba et al., "Recurrent Neural Network Regularization",
// 2014: dropout on what goes from layer to layer, none on what goes from position to position.
// Every sample starts from a state of zeros.
#include <fmt/format.h>

#include "millrace/model/internal/tokens.h"
#include "millrace/model/layers.h"
#include "millrace/model/model.h"

namespace millrace {

Model lstm_lm(ModelRequest& request) {
  const int64_t layers = request.options.count("layers", 1, 2);
  const int64_t width = request.options.count("width", 1, 256);
  const double p = internal::dropout_option(request.options, 0.1);

  Model model = internal::token_model("lstm-lm", request);
  int x = model.append(embedding("tokens", request.num_classes, width, request.dtype));
  for (int64_t i = 1; i <= layers; ++i) {
    x = internal::append_dropout(model, fmt::format("drop{}", i), p, x);
    x = model.append(lstm(fmt::format("lstm{}", i), width, width), {x});
  }
  x = internal::append_dropout(model, "drop", p, x);
  model.append(linear("projection", width, request.num_classes), {x});
  return model;
}

}  // namespace millrace
