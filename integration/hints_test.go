//go:build linux

package integration

import (
	"regexp"
	"testing"
)

var hintLine = regexp.MustCompile(`(?m)^Hint: (.*)$`)

// TestHints: an error has a hint where one saves a turn, and none where it might mislead.
func TestHints(t *testing.T) {
	n := serve(t).notebook(t)
	const frame = "import pandas as pd\ndf = pd.DataFrame({'Revenue': [1], 'customer_id': [2]}, index=['first'])\n"
	const files = "open('sales.csv', 'wb').write(b'name\\nJos\\xe9\\n'); open('other.txt', 'w').close()\n"
	for _, h := range []struct{ code, want string }{
		{"np.arange(3)", `did you forget "import numpy as np"?`},
		{"pd.DataFrame()", `did you forget "import pandas as pd"?`},
		{"def f(): plt.plot()\nf()", `did you forget "import matplotlib.pyplot as plt"?`},
		{"Path('x')", `did you forget "from pathlib import Path"?`},
		{"unknown", ""},
		{"datetime.now()", `did you forget "from datetime import datetime"?`},
		{"datetime.datetime.now()", `did you forget "import datetime"?`},
		{"import pandsa", "did you mean 'pandas'?"},
		{"import sklearn.linear_modle", "did you mean 'linear_model'?"},
		{"sns = 1\ndel sns\nimport importlib.util as u\nu.find_spec = lambda name: None\nsns", ""}, // not installed
		{frame + "df['revenue']", "there is no column 'revenue'. Did you mean 'Revenue'?"},
		{frame + "df['zz']", "there is no column 'zz'. The columns are: Revenue, customer_id"},
		{frame + "df[['Revenu', 'customer_id']]", "there is no column 'Revenu'. Did you mean 'Revenue'?"},
		{frame + "df.loc[:, 'Revenu']", "there is no column 'Revenu'. Did you mean 'Revenue'?"},
		{frame + "df.groupby('customer').sum()", "there is no column 'customer'. Did you mean 'customer_id'?"},
		{frame + "df.sort_values('Revnue')", "there is no column 'Revnue'. Did you mean 'Revenue'?"},
		{frame + "df.drop(columns=['customerid'])", "there is no column 'customerid'. Did you mean 'customer_id'?"},
		{frame + "df.set_index('revenue')", "there is no column 'revenue'. Did you mean 'Revenue'?"},
		{frame + "df.agg({'Revnue': 'sum'})", "there is no column 'Revnue'. Did you mean 'Revenue'?"},
		{frame + "df.merge(df, on='customerid')", "there is no column 'customerid'. Did you mean 'customer_id'?"},
		{frame + "df.query('revenue > 1')", "there is no column 'revenue'. Did you mean 'Revenue'?"},
		{frame + "df.revenue", "did you mean the column 'Revenue'?"},
		{frame + "df.groupby('customer_id').Revenu", "did you mean the column 'Revenue'?"},
		{frame + "df.groupby('customer_id').agg(total=('Revenu', 'sum'))", "there is no column 'Revenu'. Did you mean 'Revenue'?"},
		{frame + "df.dropna(subset=['Revenu'])", "there is no column 'Revenu'. Did you mean 'Revenue'?"},
		{frame + "import seaborn\nseaborn.scatterplot(data=df, x='Revenu', y='customer_id')", "there is no column 'Revenu'. Did you mean 'Revenue'?"},
		{frame + "df.to_excel('/tmp/x.xlsx')\npd.read_excel('/tmp/x.xlsx', sheet_name='Sales')", "the sheets are: Sheet1"},
		{frame + "df.apply(lambda row: row['revenue'], axis=1)", "there is no label 'revenue'. Did you mean 'Revenue'?"},
		{frame + "df.loc['Revenu']", ""},                            // a row
		{frame + "df.drop('Revenu')", ""},                           // a row
		{frame + "df.apply(lambda row: {}['revenue'], axis=1)", ""}, // not of the frame
		{frame + "{'Revenue': 1}['revenue']", ""},                   // not of the frame
		{frame + "df.to_nothing()", ""},                             // not a column
		{frame + "df['Revenue'].str.len()", ""},                     // another error
		{"import polars as pl\npl.DataFrame({'Revenue': [1]})['revenue']", "there is no column 'revenue'. Did you mean 'Revenue'?"},
		{"import polars as pl\npl.DataFrame({'Revenue': [1]}).select('revenue')", ""}, // polars says it
		{files + "open('salse.csv')", "did you mean 'sales.csv'?"},
		{files + "import pandas as pd\npd.read_csv('/data/Sales.CSV')", "did you mean 'sales.csv'?"},
		{files + "import polars as pl\npl.read_csv('salse.csv')", "did you mean 'sales.csv'?"},
		{files + "open('zz')", "/data has: other.txt, sales.csv"},
		{"open('/data/none/x')", "there is no directory /data/none"},
		{"open('/home/me/x')", "there is no directory /home/me. Files of the session are in /data"},
		{"import subprocess\nsubprocess.run(['sale'])", ""}, // a program
		{files + "import pandas as pd\npd.read_csv('sales.csv')", "the data is not UTF-8: try encoding='cp1252' (Windows), or encoding='latin-1', which accepts every byte"},
		{files + "open('sales.csv').read()", "the data is not UTF-8: try encoding='cp1252' (Windows), or encoding='latin-1', which accepts every byte"},
		{"import pandas as pd\nopen('u.csv', 'wb').write('a\\né\\n'.encode('utf-16'))\ntry: pd.read_csv('u.csv')\nfinally: import os; os.unlink('u.csv')", "the data is UTF-16: use encoding='utf-16'"},
		{"'売上,東京'.encode('cp932').decode()", "the data is not UTF-8: try encoding='cp932' (Japanese), 'gb18030' (Chinese) or 'cp949' (Korean)"},
		{"'\\xff'.encode('latin-1').decode('ascii')", ""},
		{"raise KeyError('revenue')", ""},
		{"raise EOFError", ""},
	} {
		for _, session := range []string{"h", ""} {
			got := n.run(t, session, h.code)
			hint := ""
			if m := hintLine.FindStringSubmatch(got.text); m != nil {
				hint = m[1]
			}
			if hint != h.want || got.exitCode != 1 {
				t.Errorf("session %q: %s\n--- exit code %d\n%s--- want %q", session, h.code, got.exitCode, got.text, h.want)
			}
			if session != "" {
				n.run(t, session, "%reset -f\nimport importlib, importlib.util; importlib.reload(importlib.util); None")
			}
		}
	}
}

// TestSuggestions: the error of a cell has the suggestions that Python prints for a program. Since
// Python 3.12 they are in its message.
func TestSuggestions(t *testing.T) {
	n := serve(t).notebook(t)
	for code, want := range map[string]string{
		"prnt(1)":                          `(?i)did you mean:? 'print'\?`,
		"import math\nmath.sqroot(4)":      `(?i)did you mean:? 'sqrt'\?`,
		"def f(count): return cuont\nf(1)": `(?i)did you mean:? 'count'\?`,
		"import os\nos.zzz":                `has no attribute 'zzz'\s`,
		"raise NameError('made up')":       `made up\s`,
		"class A:\n  x = 1\nA().__getattr": `no attribute '__getattr'`,
	} {
		if got := n.run(t, "s", code); !regexp.MustCompile(want).MatchString(got.text) {
			t.Errorf("%s\n%s", code, got.text)
		}
	}
}
