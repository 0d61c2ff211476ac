"""What cuda_to_cpp.py makes of launches and shared arrays, and what it refuses."""

import unittest

from cuda_to_cpp import Refused, rewrite

LAUNCH = "::troupe::cuda_stand_in::Launch"


def statement(text):
    return f"void f() {{ {text} }}"


class Rewritten(unittest.TestCase):
    def check(self, cuda, cpp):
        self.assertEqual(rewrite(statement(cuda)), statement(cpp))

    def test_launches(self):
        self.check("k<<<1, n>>>();", f'{LAUNCH}("k", 1, n)(k);')
        self.check("if (a) ns::k<<<g, 2, 0, s>>>(x, y);", f'if (a) {LAUNCH}("ns::k", g, 2, 0, s)(ns::k, x, y);')
        self.check(
            "k<T, kWidth<T>><<<static_cast<unsigned>(n), f(a, b)>>>(x);",
            f'{LAUNCH}("k<T, kWidth<T>>", static_cast<unsigned>(n), f(a, b))(k<T, kWidth<T>>, x);',
        )
        self.check("k<<<Grid<2, 3>::of(n), 4>>>(x);", f'{LAUNCH}("k", Grid<2, 3>::of(n), 4)(k, x);')

    def test_lines_stay(self):
        cuda = "{\n  k<T>\n      <<<1,  // one\n 2>>>(a,\n  b);\n  last;\n}"
        cpp = rewrite(cuda)
        self.assertIn(f'{LAUNCH}("k<T>", 1, 2)(k<T>, ', cpp)
        self.assertEqual(cpp.count("\n"), cuda.count("\n"))
        self.assertEqual(cpp.split("\n")[5:], cuda.split("\n")[5:])

    def test_shared_arrays(self):
        for cuda, array in (
            ("float a[8]", "float[8]"),
            ("V a[kThreads / 32]", "V[kThreads / 32]"),
            ("Pack<T, 4> a[2][3 + 1]", "Pack<T, 4>[2][3 + 1]"),
            ("unsigned long a", "unsigned long"),
        ):
            self.check(
                f"__shared__ {cuda};",
                f"auto& a = ::troupe::cuda_stand_in::shared<{array}, decltype([] {{}})>();",
            )

    def test_comments_and_text_stay(self):
        for text in (
            'puts("k<<<1, 2>>>(x); __shared__ a");',
            "a();  // k<<<1, 2>>>(x)\n",
            "/* __shared__ */ x = 1'000 << 2;",
            'puts(R"x(k<<<)" >>>)x");',
            "auto c = '<';",
        ):
            self.check(text, text)


class Refusals(unittest.TestCase):
    def check(self, cuda, why):
        with self.assertRaisesRegex(Refused, why):
            rewrite(statement(cuda))

    def test_launches(self):
        self.check("k<<<1>>>(x);", "1 parts")
        self.check("k<<<1, 2, 0, s, t>>>(x);", "5 parts")
        self.check("k<<<1, >>>(x);", "2 parts")
        self.check("k<<<1, 2>>>;", "no arguments")
        self.check("k<<<1, 2>>>(x), y();", "does not end")
        self.check("k<<<1, 2(x);", "between|without")
        self.check("k<<<a < b, 2>>>(x);", "'<' between")
        self.check("return k<<<1, 2>>>(x);", "no statement")
        self.check("table[0]<<<1, 2>>>(x);", "no kernel's name")
        self.check("(*k)<<<1, 2>>>(x);", "no kernel's name")
        self.check("k<f(1)><<<1, 2>>>(x);", "template arguments")
        self.check("k<<<1, 2>>>(j<<<1, 2>>>(x));", "among the arguments|no statement")
        self.check("k<<<1, (2>>>(x);", "brackets|closed")

    def test_shared_arrays(self):
        self.check("extern __shared__ float a[];", "statement of its own")
        self.check("__shared__ float a[2], b[2];", r"'\['")
        self.check("__shared__ float a[2] = {};", "not: |'='")
        self.check("__shared__ alignas(16) float a[2];", r"'\('")
        self.check("__shared__ a;", "not: ")


if __name__ == "__main__":
    unittest.main()
