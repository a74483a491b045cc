#!/usr/bin/env bash
# Holds every #include to the table that the millrace_folder() lines of CMakeLists.txt form. Needed
# because a header of an undeclared folder compiles and, if nothing of it has a body, even links.
set -euo pipefail
cd "$(dirname "$0")/.."
find millrace tests bench examples \( -name '*.h' -o -name '*.cc' -o -name '*.def' \) -print0 2> /dev/null |
  sort -z | xargs -0 awk '
    function report(text) { printf "%s:%d: %s\n", FILENAME, FNR, text; bad = 1 }

    # The table: may[a, b] if a may include b; torch[a] if a is in the half that needs libtorch.
    FILENAME == "CMakeLists.txt" {
      if (!/^millrace_folder\(/) next
      n = split($0, word, /[ ()]+/); name = word[2]; allowed = ""
      known[name] = may[name, name] = 1
      if (name != "base") may[name, "base"] = 1
      if (name != "base" && name != "core") may[name, "core"] = 1
      in_deps = 0
      for (i = 3; i <= n; ++i) {
        if (word[i] == "TORCH") torch[name] = 1
        else if (word[i] == "DEPS" || word[i] == "THIRD_PARTY") in_deps = word[i] == "DEPS"
        else if (in_deps && word[i] != "") may[name, word[i]] = 1
      }
      next
    }

    FNR == 1 {
      split(FILENAME, part, "/"); top = part[1]; folder = part[2]
      ours = top == "millrace"
      # Folders that may use everything of their half; with a torch/ below them, of both halves.
      free = folder == "cli" || !ours
      with_torch = (folder in torch) || top == "examples" || FILENAME ~ /^(millrace\/cli|tests\/cli|tests\/support|bench)\/torch\//
      if (ours && !free && !(folder in known)) report("the folder has no millrace_folder() line in CMakeLists.txt")
    }

    /^ *# *include *</ && /<(ATen|torch|c10)[\/.]/ && !with_torch { report("libtorch in the half that does without: " $0) }

    /^ *# *include *"/ {
      split($0, quoted, "\""); n = split(quoted[2], part, "/"); target = part[2]
      if (part[1] == "tests" && !ours) next
      if (part[1] != "millrace" || n < 3) { report("name it from the repository root: " $0); next }
      if (free && quoted[2] ~ /\.def$/) next  # names and text only: cli lists them without libtorch
      if (part[3] == "internal" && target != folder) report("private to " target ": " $0)
      if ((target in torch) && !with_torch) report(target " needs libtorch: " $0)
      else if (ours && !free && !((folder, target) in may)) report(folder " may not include " target ": " $0)
    }

    END { exit bad }
  ' CMakeLists.txt
