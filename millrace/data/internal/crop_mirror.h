// CropMirror: images as training sees them in one epoch: each padded with black, cropped back to
// its size at a random place, and mirrored left to right every other time. Used by the image
// datasets for augment = "crop-mirror".
//
// The usual changes of small images, as in He, Zhang, Ren, Sun, "Deep Residual Learning for Image
// Recognition", arXiv 1512.03385, section 4.2 (4 pixels for 32x32); 2 pixels up to 28x28 are ours.
// Draws are keyed by seed, epoch and sample, so they are the same for every layout and whoever
// loads.
#pragma once

#include <memory>

#include "millrace/data/dataset.h"

namespace millrace::internal {

// Reads "augment" and says whether it is "crop-mirror". Throws for another value than that or
// "none".
bool reads_crop_mirror(Reader& options);

// The same images, changed in every epoch of training. `images` have [channels, rows, columns];
// `black` is what comes in at their edges.
std::unique_ptr<Dataset> with_crop_mirror(std::unique_ptr<Dataset> images, double black);

}  // namespace millrace::internal
