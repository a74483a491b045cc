// The signals that a launcher waits for, as a descriptor. One thread, the process's main one.
#pragma once

#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

#include "millrace/cli/common/child.h"

namespace millrace::cli {

// Blocks the signals that a launcher waits for and offers them as a descriptor; as before when it
// goes.
class Signals {
 public:
  Signals() {
    ::sigemptyset(&set_);
    ::sigaddset(&set_, SIGCHLD);
    for (int signal : {SIGINT, SIGTERM}) {
      struct sigaction action = {};
      ::sigaction(signal, nullptr, &action);
      if (action.sa_handler != SIG_IGN) {  // such as SIGINT of a job in the background
        ::sigaddset(&set_, signal);
      }
    }
    // Where it is ignored, ends of children are not kept.
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &standard, &old_child_);
    ::sigprocmask(SIG_BLOCK, &set_, &old_mask_);
    fd_ = Descriptor(::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Signals() {
    ::sigaction(SIGCHLD, &old_child_, nullptr);
    ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_.get(); }
  // The next one that arrived, 0 for none.
  int next() const {
    signalfd_siginfo info = {};
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }

 private:
  sigset_t set_ = {};
  sigset_t old_mask_ = {};
  struct sigaction old_child_ = {};
  Descriptor fd_;
};

}  // namespace millrace::cli
