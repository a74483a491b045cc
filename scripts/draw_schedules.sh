#!/usr/bin/env bash
# The pictures of docs/schedules.md. Usage: draw_schedules.sh MILLRACE [FOLDER]
set -euo pipefail
millrace=$1
folder=${2:-$(dirname "$0")/../docs/images}
while read -r name microbatches; do
  "$millrace" schedule --name "$name" --ranks 4 --microbatches "$microbatches" --draw svg -o "$folder/$name.svg" > /dev/null
done << 'END'
chimera 8
zb-v 8
1f1b-interleaved 8
timeprest 4
END
