#!/usr/bin/env bash
# The example of a user's own model and data does all that `millrace` does with its run.toml.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
own=$(dirname "$MILLRACE")/own_model
examples=$(cd "$OLDPWD" && pwd)/examples
run=$examples/own_model.toml

lines=$(wc -l < "$examples/own_model.cc")
((lines <= 40)) || complain "the example takes $lines lines, not 40"

"$own" --help | grep -q '^  train ' || complain "no help"
"$own" help train | grep -q -- '--resume' || complain "no help of a subcommand"
"$own" list models > out || complain "list models"
grep -q 'ring' out && grep -q 'lenet' out || complain "list does not show both own and builtin models"
"$own" list datasets | grep -q 'circle' || complain "list does not show the own dataset"

"$own" train "$run" --run-dir run > out 2> err || complain "train: $(tail -n 1 err)"
[[ -s run/report.html ]] || complain "no report.html"
[[ $(grep -c '"ranks"' run/plan.json) == 2 ]] || complain "not a plan of two stages: $(cat run/plan.json)"
grep -q '"bend"' run/plan.json || complain "the plan does not name the example's layers"
"$own" eval run --json > out 2> err || complain "eval: $(tail -n 1 err)"
grep -qE '"accuracy": (0\.9|1)' out || complain "the model does not learn: $(cat out)"
"$own" report run > out 2> err || complain "report: $(tail -n 1 err)"
"$own" verify "$run" --steps 5 > out 2> err || complain "verify: $(tail -n 1 err)"
"$own" verify "$run" --steps 8 --set parallel.schedule=pipedream --set parallel.microbatches=1 \
  > out 2> err || complain "verify without a flush: $(tail -n 1 err)"
"$own" verify "$run" --break scale > out 2> err
[[ $? == 1 ]] || complain "verify does not notice a wrong division of the gradients"
"$own" profile "$run" -o profile.json > out 2> err || complain "profile: $(tail -n 1 err)"
"$own" plan profile.json --cluster "$examples/cluster.toml" > out 2> err || complain "plan: $(tail -n 1 err)"

"$own" train "$run" --set model.widht=3 > out 2> err
[[ $? == 2 ]] || complain "an unknown option was taken"
grep -q 'did you mean `width`' err || complain "an unknown option is not answered: $(tail -n 1 err)"
"$MILLRACE" train "$run" > out 2> err
[[ $? == 2 ]] || complain "millrace itself knows the example's model"
finish "own model and data"
