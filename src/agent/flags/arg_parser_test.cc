#include "agent/flags/arg_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<ArgSpec> Specs() {
  return {
      {{"-h", "--help"}, Arity::kNone, 0},
      {{"--nnodes"}, Arity::kOne, 0},
      {{"--nproc-per-node", "--nproc_per_node"}, Arity::kOne, 0},
      {{"-m", "--module"}, Arity::kNone, 0},
      {{"-r", "--redirects"}, Arity::kOne, 0},
      {{"--role"}, Arity::kOne, 0},
      {{"--standalone"}, Arity::kNone, 0},
      {{"--state-dir", "--state_dir"}, Arity::kOne, 1},
      {{"--box-pairs", "--box_pairs"}, Arity::kOneOrMore, 1},
      {{"--restart-grace", "--restart_grace"}, Arity::kOne, 1},
  };
}

struct Parsed {
  std::string options;  // "--nnodes=2 --standalone"
  std::string script;
  std::vector<std::string> script_args;
  std::string error;
};

Parsed Parse(const std::vector<std::string>& args) {
  Parsed parsed;
  ParsedLine line = ParseLine(Specs(), args);
  parsed.error = Message(line.status);
  for (const ParsedOption& option : line.options) {
    parsed.options += fmt::format("{}{}", parsed.options.empty() ? "" : " ", option.name);
    for (const std::string& value : option.values) parsed.options += fmt::format("={}", value);
  }
  parsed.script = line.script.value_or("<none>");
  parsed.script_args = line.script_args;
  return parsed;
}

TEST(ArgParser, TakesValuesAttachedAndApart) {
  EXPECT_EQ(Parse({"--nnodes=2", "-r3", "-r", "1", "-r=2", "s.py"}).options, "--nnodes=2 -r=3 -r=1 -r=2");
  EXPECT_EQ(Parse({"--role=", "--role", "", "s.py"}).options, "--role= --role=");
  EXPECT_EQ(Parse({"--role=a=b", "s.py"}).options, "--role=a=b");
  EXPECT_EQ(Parse({"--nproc_per_node", "4", "s.py"}).options, "--nproc_per_node=4");
}

TEST(ArgParser, EverythingAfterTheScriptIsTheScripts) {
  Parsed parsed = Parse({"--nnodes", "2", "s.py", "--nnodes", "9", "-r", "--unknown", "--", "--role"});
  EXPECT_EQ(parsed.options, "--nnodes=2");
  EXPECT_EQ(parsed.script, "s.py");
  EXPECT_THAT(parsed.script_args, ElementsAre("--nnodes", "9", "-r", "--unknown", "--", "--role"));
}

// Each line as Python 3.11's argparse splits it with torchrun's parser.
TEST(ArgParser, TreatsDoubleDashAsArgparse) {
  EXPECT_THAT(Parse({"s.py", "--", "--a"}).script_args, ElementsAre("--a"));
  EXPECT_THAT(Parse({"s.py", "--", "--", "x"}).script_args, ElementsAre("--", "x"));
  EXPECT_THAT(Parse({"s.py", "x", "--", "y"}).script_args, ElementsAre("x", "--", "y"));
  EXPECT_THAT(Parse({"--", "s.py", "--a"}).script_args, ElementsAre("--a"));
  EXPECT_THAT(Parse({"--", "s.py", "--", "x"}).script_args, ElementsAre("--", "x"));
  EXPECT_EQ(Parse({"--", "-s.py"}).script, "-s.py");
  EXPECT_EQ(Parse({"--"}).script, "<none>");
  EXPECT_EQ(Parse({"-", "x"}).script, "-");
  EXPECT_THAT(Parse({"--role", "--", "s.py"}).error, HasSubstr("--role: expected one argument"));
}

TEST(ArgParser, KnowsWhatCountsAsAValue) {
  EXPECT_EQ(Parse({"--role", "-1", "s.py"}).options, "--role=-1");
  EXPECT_EQ(Parse({"--role", "-1.5", "s.py"}).options, "--role=-1.5");
  EXPECT_EQ(Parse({"--role", "-a b", "s.py"}).options, "--role=-a b");
  EXPECT_EQ(Parse({"--role", "-", "s.py"}).options, "--role=-");
  EXPECT_THAT(Parse({"--role", "-x", "s.py"}).error, HasSubstr("--role: expected one argument"));
  EXPECT_THAT(Parse({"--role", "--standalone", "s.py"}).error, HasSubstr("--role: expected one argument"));
  EXPECT_THAT(Parse({"--nnodes"}).error, HasSubstr("--nnodes: expected one argument"));
}

TEST(ArgParser, TakesAllValuesWhereOneOrMoreAreMeant) {
  EXPECT_EQ(Parse({"--box-pairs", "0:1", "2:4", "--standalone", "s.py"}).options, "--box-pairs=0:1=2:4 --standalone");
  EXPECT_THAT(Parse({"--box-pairs", "--standalone", "s.py"}).error, HasSubstr("at least one"));
}

TEST(ArgParser, ClustersSwitches) {
  EXPECT_EQ(Parse({"-mr3", "mod"}).options, "-m -r=3");
  EXPECT_EQ(Parse({"-mr", "3", "mod"}).options, "-m -r=3");
  EXPECT_THAT(Parse({"-mfoo", "mod"}).error, HasSubstr("-m: takes no value, but got 'foo'"));
  EXPECT_THAT(Parse({"--standalone=1", "s.py"}).error, HasSubstr("--standalone: takes no value, but got '1'"));
}

TEST(ArgParser, ResolvesPrefixesAgainstTheFirstTierFirst) {
  EXPECT_EQ(Parse({"--redirect=3", "s.py"}).options, "--redirects=3");
  EXPECT_EQ(Parse({"--re", "3", "s.py"}).options, "--redirects=3");  // --restart-grace is of a later tier
  EXPECT_EQ(Parse({"--res=1", "s.py"}).options, "--restart-grace=1");
  EXPECT_EQ(Parse({"--sta", "s.py"}).options, "--standalone");
  EXPECT_EQ(Parse({"--stat=d", "s.py"}).options, "--state-dir=d");
  EXPECT_EQ(Parse({"--nproc=2", "s.py"}).options, "--nproc-per-node=2");  // two spellings of one flag are not ambiguous
  EXPECT_EQ(Parse({"--nproc_per=2", "s.py"}).options, "--nproc_per_node=2");
  EXPECT_EQ(Parse({"--n=2", "s.py"}).error, "ambiguous option: --n=2 could match --nnodes, --nproc-per-node");
  EXPECT_EQ(Parse({"--nnodes=2", "s.py"}).error, "");  // an exact name is never ambiguous
}

TEST(ArgParser, SuggestsTheNearest) {
  EXPECT_EQ(Parse({"--nnode=2", "s.py"}).options, "--nnodes=2");
  EXPECT_EQ(Parse({"--nndoes=2", "s.py"}).error, "unrecognized argument: --nndoes=2; did you mean --nnodes?");
  EXPECT_EQ(Parse({"--standalon-e", "s.py"}).error, "unrecognized argument: --standalon-e; did you mean --standalone?");
  EXPECT_EQ(Parse({"--learning-speed", "1", "s.py"}).error, "unrecognized argument: --learning-speed");
  EXPECT_EQ(Parse({"-x", "s.py"}).error, "unrecognized argument: -x");
}

TEST(ArgParser, KeepsWhatComesBeforeTheFault) {
  EXPECT_EQ(Parse({"-h", "-x", "--role=r"}).options, "-h");
  EXPECT_EQ(Parse({"-h", "-x", "--role=r"}).error, "unrecognized argument: -x");
}

TEST(ArgParser, NeedsNoScript) {
  EXPECT_EQ(Parse({"-h"}).script, "<none>");
  EXPECT_THAT(Parse({}).script_args, IsEmpty());
}

TEST(ArgParser, SpellsBothWays) {
  EXPECT_THAT(BothSpellings("--log-dir"), ElementsAre("--log-dir", "--log_dir"));
  EXPECT_THAT(BothSpellings("--role"), ElementsAre("--role"));
}

}  // namespace
}  // namespace phalanx::agent
