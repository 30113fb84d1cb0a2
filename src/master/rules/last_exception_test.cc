#include "master/rules/last_exception.h"

#include <gtest/gtest.h>

#include <string>

namespace phalanx::master {
namespace {

TEST(LastExceptionTest, IsTheLineBehindTheFrames) {
  EXPECT_EQ(LastException("loading\n"
                          "Traceback (most recent call last):\n"
                          "  File \"train.py\", line 2, in <module>\n"
                          "    import nothing_there\n"
                          "ModuleNotFoundError: No module named 'nothing_there'\n"),
            "ModuleNotFoundError: No module named 'nothing_there'");
}

TEST(LastExceptionTest, OfAChainTheLastOneCounts) {
  EXPECT_EQ(LastException("Traceback (most recent call last):\n"
                          "  File \"a.py\", line 1, in f\n"
                          "KeyError: 'x'\n"
                          "\n"
                          "During handling of the above exception, another exception occurred:\n"
                          "\n"
                          "Traceback (most recent call last):\n"
                          "  File \"a.py\", line 3, in g\n"
                          "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
                          "more of its message: of several lines\n"),
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB");
}

TEST(LastExceptionTest, MayBeginBehindAProgressBar) {
  EXPECT_EQ(LastException(" 50%|#####     | 5/10 [00:01<00:01]Traceback (most recent call last):\n"
                          "  File \"a.py\", line 1, in f\nValueError: bad\n"),
            "ValueError: bad");
}

TEST(LastExceptionTest, TorchWritesTheRankBeforeEachLine) {
  EXPECT_EQ(LastException("[rank12]: Traceback (most recent call last):\n"
                          "[rank12]:   File \"a.py\", line 1, in f\n"
                          "[rank12]: AssertionError\n"
                          "W1127 a warning of another thread: behind it\n"),
            "AssertionError");
}

TEST(LastExceptionTest, ASyntaxErrorHasNoTraceback) {
  EXPECT_EQ(LastException("  File \"a.py\", line 3\n    def f(\n         ^\nSyntaxError: '(' was never closed\n"),
            "SyntaxError: '(' was never closed");
}

TEST(LastExceptionTest, NothingElseIsTakenForOne) {
  EXPECT_EQ(LastException(""), "");
  EXPECT_EQ(LastException("Error: the disk is full\nValueError: said by a script\n"), "");
  EXPECT_EQ(LastException("Traceback (most recent call last):\n  File \"a.py\", line 1\n"), "") << "it was cut off";
  EXPECT_EQ(LastException("Traceback (most recent call last):\n  File \"a.py\"\n100 %|####| 3/3: done\n"), "");
  EXPECT_EQ(LastException("[rank]: Traceback (most recent call last):\n[rank]: E: x\n"), "");
}

TEST(LastExceptionTest, IsBoundedAndPrintable) {
  const std::string before = "Traceback (most recent call last):\n  File \"a.py\"\n";
  EXPECT_EQ(LastException(before + "E: \x1b[31mred\r\n"), "E: ?[31mred");
  EXPECT_EQ(LastException(before + "E: " + std::string(500, 'x')),
            "E: " + std::string(kMaxExceptionBytes - 3, 'x') + "...");
  EXPECT_EQ(LastException(before + "E:" + std::string(kMaxExceptionBytes - 3, 'x') + "\xC3\xA4 more"),
            "E:" + std::string(kMaxExceptionBytes - 3, 'x') + "...")
      << "half of a letter";
  EXPECT_EQ(LastException(before + "E: \xff\xc2\x9b"
                                   "0m"),
            "E: \xef\xbf\xbd?0m")
      << "what no message may carry";
}

v1::WorkerExited Exited(const std::string& error_json, const std::string& last_words, int signal = 0) {
  v1::WorkerExited exit;
  exit.set_exit_code(1);
  exit.set_signal(signal);
  exit.set_error_json(error_json);
  exit.set_last_words(last_words);
  return exit;
}

TEST(LastExceptionTest, TheErrorFileKnowsBest) {
  const std::string words = "Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 1\n";
  EXPECT_EQ(LastException(Exited(R"({"message": {"message": "ValueError: bad\nsample"}})", words)), "ValueError: bad");
  EXPECT_EQ(LastException(Exited(R"({"message": "not one of Python's"})", words)), "KeyError: 1");
  EXPECT_EQ(LastException(Exited("garbage", words)), "KeyError: 1");
  EXPECT_EQ(LastException(Exited("", words, 9)), "") << "it had gone on behind that";
}

TEST(LastingErrorTest, IsAMistakeOfTheProgramWithItsPlace) {
  const std::string frames =
      "Traceback (most recent call last):\n  File \"src/train.py\", line 3, in <module>\n    main()\n"
      "  File \"src/model.py\", line 12, in main\n    x = y\n";
  EXPECT_EQ(LastingError(Exited("", frames + "NameError: name 'y' is not defined\n")),
            "NameError: name 'y' is not defined, at src/model.py:12");
  EXPECT_EQ(LastingError(Exited("", frames + "RuntimeError: connection refused\n")), "");
  EXPECT_EQ(LastingError(Exited("", frames + "ConnectionError: refused\n")), "");
  EXPECT_EQ(LastingError(Exited("", frames + "NameError: x\n", 9)), "");
  EXPECT_EQ(LastingError(Exited("", "Traceback (most recent call last):\nNameError: x\n")), "") << "where is not known";
  EXPECT_EQ(LastingError(Exited("", "  File \"a.py\", line 3\n    def f(\n         ^\nSyntaxError: bad\n")),
            "SyntaxError: bad, at a.py:3");
  EXPECT_EQ(LastingError(Exited("",
                                "[rank1]: Traceback (most recent call last):\n"
                                "[rank1]:   File \"a.py\", line 7, in f\n[rank1]: KeyError: 'lr'\n")),
            "KeyError: 'lr', at a.py:7");
}

}  // namespace
}  // namespace phalanx::master
