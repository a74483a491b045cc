#include "millrace/model/internal/classification.h"

#include <fmt/format.h>

#include <string>

#include "millrace/base/error.h"
#include "millrace/base/text.h"

namespace millrace::internal {

std::unique_ptr<Loss> classification_loss(Reader& options) {
  const std::string name = options.text("loss", "cross-entropy");
  const double alpha = options.number("focal_alpha", 0.25);
  const double gamma = options.number("focal_gamma", 2);
  if (name == "cross-entropy") {
    return cross_entropy();
  }
  if (name != "focal") {
    throw options.error(
        "loss", fmt::format("expected `cross-entropy` or `focal`, found {}{}", in_quotes(name),
                            did_you_mean(name, {"cross-entropy", "focal"})));
  }
  try {
    return focal_loss(alpha, gamma);
  } catch (const Error& error) {
    throw options.error("focal_gamma", error.message());
  }
}

}  // namespace millrace::internal
