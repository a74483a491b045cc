// The option of models that tell classes: which loss they learn by. Private to `model`.
#pragma once

#include <memory>

#include "millrace/base/document.h"
#include "millrace/model/loss.h"

namespace millrace::internal {

// The option `loss`, "cross-entropy" (the default) or "focal" with `focal_alpha` = 0.25 and
// `focal_gamma` = 2. Errors carry the key.
std::unique_ptr<Loss> classification_loss(Reader& options);

}  // namespace millrace::internal
