// A program of your own with everything that `millrace` does, on your models and data beside the
// builtin ones: run.toml names them, and they are planned, trained, verified and reported alike.
//
//   int main(int argc, char** argv) {
//     millrace::add_model({"my-model", "what it is", "width=32", my_model});
//     millrace::add_dataset({"my-data", "what it holds", "", my_data});
//     return millrace::run_program(argc, argv);
//   }
//
// examples/own_model.cc is a whole one. Link millrace_program.
#pragma once

#include "millrace/data/dataset.h"
#include "millrace/model/model.h"

namespace millrace {

// Does what the command line says and returns the exit status; errors are printed. Starts the
// process again, once, for the variables that keep BLAS and OpenMP from starting threads of their
// own, where they are not set: do nothing before but adding models and data. From the main thread.
int run_program(int argc, char** argv);

}  // namespace millrace
